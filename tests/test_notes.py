"""What clients and server want to be seen of a round, and the gradient norms among it."""

from dataclasses import dataclass

import methods
import pytest
import torch
import toys
from torch.nn.functional import cross_entropy

from manyheads.algorithms import registry
from manyheads.algorithms.fedavg import FedAvg
from manyheads.algorithms.fedper import FedPer
from manyheads.contract import Objective, Part

NORMED = {"model__name": "resnet8", "model__width": 2, "train__epochs": 1}


@dataclass(frozen=True)
class Noting(FedPer):
    """Clients note their id and their round, the server how many uploads it got and what it sees of the notes."""

    def local_update(self, received, private, data, ctx):
        ctx.note("id", 2 * ctx.party)
        ctx.note("both", -1)
        return super().local_update(received, private, data, ctx)

    def aggregate(self, server, uploads, ctx):
        assert ctx.notes == {}
        ctx.note("both", dict.fromkeys(uploads, len(uploads)))
        return super().aggregate(server, uploads, ctx)


@pytest.mark.parametrize("engine", ["serial", "threads"])
def test_notes_of_clients_are_in_the_row(engine):
    result = toys.run(Noting(), run__engine=engine, run__workers=2)
    before, *rounds = result.rows
    assert "notes" not in before
    for row, cohort in zip(rounds, toys.COHORTS, strict=True):
        assert row["notes"] == {  # where both rooms use a name, the server's word stands
            "id": {str(client): 2.0 * client for client in cohort},
            "both": {str(client): 3.0 for client in cohort},
        }


@dataclass(frozen=True)
class NotingPoisoned(methods.Poisoned):
    def local_update(self, received, private, data, ctx):
        ctx.note("id", ctx.party)
        return super().local_update(received, private, data, ctx)


def test_a_client_that_is_dropped_has_no_note():
    result = toys.run(NotingPoisoned(client=3, at=1), run__non_finite="drop")
    assert list(result.rows[2]["dropped"]) == ["3"]
    assert result.rows[2]["notes"] == {"id": {"1": 1.0, "4": 4.0}}


@pytest.mark.parametrize("name", registry.names())
def test_gradient_norms_change_nothing_else(name):
    algorithm = toys.method(name)
    off = toys.run(algorithm)
    on = toys.run(algorithm, run__gradients=True, run__engine="threads", run__workers=2)
    noted = {(row["round"], "stage" in row): row.get("notes", {}).pop("squared_gradient", None) for row in on.rows}
    for row in on.rows:
        if row.get("notes") == {}:
            del row["notes"]
    assert toys.plain(on.rows) == toys.plain(off.rows)
    assert (on.server, on.private) == (off.server, off.private)
    assert noted[-1, False] is None
    for round, cohort in enumerate(toys.COHORTS):
        norms = noted[round, False]
        assert list(norms) == [str(client) for client in cohort]
        assert all(norm > 0 for norm in norms.values())
        assert len(set(norms.values())) == len(cohort)


def test_the_norm_is_that_of_the_whole_gradient():
    """All parameters of an eval-mode network, whatever is sent: BatchNorm's weights count, its statistics do not."""
    result = toys.run(FedPer(), run__gradients=True, **NORMED)
    stage = toys.setting(FedPer(), **NORMED)
    bound = stage.network.bind(stage.network.initial.clone(), stage.network.initial)
    bound.modules.eval()
    for client in toys.COHORTS[0]:
        bound.modules.zero_grad()
        data = stage.parties.train(client)
        logits = bound.modules["head"](bound.modules["backbone"](data.x(torch.arange(len(data)))))
        cross_entropy(logits, data.y).backward()
        expected = sum(float(p.grad.double().square().sum()) for p in bound.modules.parameters())
        assert result.rows[1]["notes"]["squared_gradient"][str(client)] == pytest.approx(expected, rel=1e-4)


@dataclass(frozen=True)
class Busy(FedAvg):
    """Trains in order to say what its objective is, and notes it."""

    def objective(self, received, private, data, ctx):
        ctx.note("busy", 1.0)
        model = ctx.fit(self.assemble(received, private), self.loss, data, trains=Part.HEAD, phase="busy")
        return Objective(model, self.loss, data)


def test_what_is_measured_leaves_no_trace():
    on, off = toys.run(Busy(), run__gradients=True), toys.run(Busy())
    assert [row["loss"] for row in on.rows] == [row["loss"] for row in off.rows]
    assert set(on.rows[1]["loss"]) == {"ce"}
    assert list(on.rows[1]["notes"]) == ["squared_gradient"]


def test_a_resumed_run_goes_on_noting(tmp_path):
    whole = toys.run(FedPer(), run__gradients=True)
    with pytest.raises(KeyboardInterrupt):
        toys.experiment(FedPer(), run__gradients=True).run(tmp_path / "run", toys.raising(1))
    resumed = toys.resume(tmp_path / "run", FedPer())
    assert toys.plain(resumed.rows) == toys.plain(whole.rows)
    assert all("squared_gradient" in row["notes"] for row in resumed.rows[1:])
