"""FedRep trains the head on the received backbone, then the backbone on the new head."""

from dataclasses import dataclass

import pytest
import toys

from manyheads.algorithms.fedper import FedPer
from manyheads.algorithms.fedrep import FedRep
from manyheads.contract import Part
from manyheads.errors import InputError

EVERYONE = tuple([tuple(range(6))] * 3)


@dataclass(frozen=True)
class FedPerOfBackbones(FedPer):
    """FedPer that never trains its heads."""

    def train(self, model, received, private, data, ctx):
        return ctx.fit(model, self.loss, data, trains=Part.BACKBONE, phase="backbone")


@pytest.mark.parametrize("cohorts", [EVERYONE, toys.COHORTS], ids=["all", "half"])
def test_without_head_epochs_it_is_fedper_that_trains_backbones_only(cohorts):
    fedrep = toys.run(FedRep(head_epochs=0, backbone_epochs=2), cohorts=cohorts)
    fedper = toys.run(FedPerOfBackbones(), cohorts=cohorts)
    assert fedrep.server == fedper.server
    assert fedrep.private == fedper.private
    assert toys.plain(fedrep.rows) == toys.plain(fedper.rows)


def test_each_phase_leaves_the_other_part_as_it_is():
    # With momentum and weight decay, which would move a part whose gradient were only set to zero.
    setting = toys.setting(FedRep(), train__momentum=0.9, train__weight_decay=0.1)
    ctx, data, start = setting.client(0, 1), setting.parties.train(1), setting.network.initial
    head_first = ctx.fit(start, setting.algorithm.loss, data, trains=Part.HEAD, epochs=range(1))
    after = setting.algorithm.train(start, None, None, data, ctx)
    assert head_first.part("backbone") == start.part("backbone")
    assert after.part("head") == head_first.part("head") != start.part("head")
    assert after.part("backbone") != start.part("backbone")


@pytest.mark.parametrize(
    ("local", "head", "steps"), [(5, None, (4, 1)), (2, None, (1, 1)), (1, None, (1, 1)), (2, 10, (10, 1))]
)
def test_head_and_backbone_epochs_share_the_local_ones(local, head, steps, monkeypatch):
    setting = toys.setting(FedRep(head_epochs=head), train__epochs=local)
    ctx, epochs = setting.client(0, 1), []
    fit = type(ctx).fit
    monkeypatch.setattr(type(ctx), "fit", lambda *args, **how: (epochs.append(how["epochs"]), fit(*args, **how))[1])
    setting.algorithm.train(setting.network.initial, None, None, setting.parties.train(1), ctx)
    assert tuple(map(len, epochs)) == steps
    assert not set(epochs[0]) & set(epochs[1])  # phases share no order of samples


def test_negative_epochs_are_refused():
    with pytest.raises(InputError, match=r"algorithm.head_epochs = -1: must be at least 0"):
        FedRep(head_epochs=-1)
