"""Baselines that must be each other bit for bit: three rounds with dropout, of all clients or of half of them."""

from dataclasses import replace
from functools import cache

import pytest
import toys

from manyheads.algorithms.ditto import Ditto
from manyheads.algorithms.fedavg import FedAvg
from manyheads.algorithms.fedavg_ft import FedAvgFT
from manyheads.algorithms.fedbabu import FedBABU
from manyheads.algorithms.fedbn import FedBN
from manyheads.algorithms.fedper import FedPer
from manyheads.algorithms.fedprox import FedProx
from manyheads.algorithms.lg_fedavg import LGFedAvg
from manyheads.algorithms.local_only import LocalOnly
from manyheads.contract import SGD, Part, Upload
from manyheads.contract.tree import same_bits
from manyheads.errors import InputError

EVERYONE = tuple([tuple(range(6))] * 3)
both = pytest.mark.parametrize("cohorts", [EVERYONE, toys.COHORTS], ids=["all", "half"])
RESNET = {"model__name": "resnet8", "model__width": 2}


@cache
def ran(method, cohorts, **values):
    """The result of a run; runs are shared by the tests of this file."""
    return toys.run(method, cohorts=cohorts, **values)


class FedPerOfStillHeads(FedPer):
    """FedPer whose heads have a learning rate of 0."""

    def train(self, model, received, private, data, ctx):
        return ctx.fit(model, self.loss, data, optim={Part.HEAD: SGD(0.0), Part.BACKBONE: ctx.sgd})


@both
def test_fedprox_without_its_term_is_fedavg(cohorts):
    assert ran(FedProx(prox_weight=0.0), cohorts).server == ran(FedAvg(), cohorts).server
    assert ran(FedProx(prox_weight=0.1), cohorts).server != ran(FedAvg(), cohorts).server


@both
def test_the_shared_model_of_ditto_is_fedavg_s(cohorts):
    assert ran(Ditto(), cohorts).server == ran(FedAvg(), cohorts).server


@both
def test_the_personal_models_of_ditto_without_its_term_are_those_of_local_only(cohorts):
    ditto, local = ran(Ditto(prox_weight=0.0), cohorts), ran(LocalOnly(), cohorts)
    assert {k: kept.personal for k, kept in ditto.private.items()} == {
        k: kept.model for k, kept in local.private.items()
    }
    for moment in ("post_agg", "post_local"):
        assert toys.metrics(ditto, "personal", moment) == toys.metrics(local, "personal", moment)
    held = ran(Ditto(prox_weight=1.0), cohorts)
    assert all(held.private[k].personal != kept.model for k, kept in local.private.items())


@both
def test_fedbabu_before_tuning_is_fedper_with_still_heads(cohorts):
    babu, fedper = ran(FedBABU(), cohorts), ran(FedPerOfStillHeads(), cohorts)
    assert babu.server == fedper.server
    assert babu.private == fedper.private
    assert toys.metrics(babu, "personal", "post_agg") == toys.metrics(fedper, "personal", "post_agg")


def test_the_head_of_fedbabu_never_moves():
    # With momentum and weight decay, which would move a head whose gradient were only set to zero.
    result = toys.run(FedBABU(), train__momentum=0.9, train__weight_decay=0.1)
    initial = toys.setting(FedBABU()).network.initial
    for kept in result.private.values():
        assert kept.model.part("head") == initial.part("head")


@pytest.mark.parametrize("method", [FedAvgFT(), FedAvgFT(tune="head", tune_steps=3), FedBABU(), FedBABU(tune="head")])
def test_tuning_is_measured_and_dropped(method):
    result = ran(method, EVERYONE)
    assert any(toys.metrics(result, "personal", "post_adapt"))
    untuned = replace(method, tune_epochs=0, **({"tune_steps": None} if isinstance(method, FedAvgFT) else {}))
    assert ran(untuned, EVERYONE).server == result.server
    assert ran(untuned, EVERYONE).private == result.private


@both
def test_fedavg_with_fine_tuning_trains_as_fedavg(cohorts):
    tuned, plain = ran(FedAvgFT(), cohorts), ran(FedAvg(), cohorts)
    assert tuned.server == plain.server
    assert toys.metrics(tuned, "global", "post_agg") == toys.metrics(plain, "global", "post_agg")


def test_tuning_the_head_leaves_the_backbone():
    stage = toys.setting(FedAvgFT(tune="head", tune_steps=3))
    start, ctx = stage.network.initial, stage.client(0, 0)
    tuned = stage.algorithm.adapt(start, stage.parties.train(0), ctx)
    assert tuned.part("backbone") == start.part("backbone")
    assert tuned.part("head") != start.part("head")


def test_lg_fedavg_shares_heads_only(overheard):
    result = toys.run(LGFedAvg())
    heads = {name for name in toys.setting(LGFedAvg()).network.initial if name.startswith("head.")}
    for data in overheard.values():
        assert set(Upload.from_bytes(data).model) == heads
    backbones = [kept.model.part("backbone") for kept in result.private.values()]
    assert all(a != b for i, a in enumerate(backbones) for b in backbones[:i])


def test_fedbn_keeps_normalisation_layers():
    result = toys.run(FedBN(), **RESNET)
    initial, tags = toys.setting(FedBN(), **RESNET).network.initial, toys.setting(FedBN(), **RESNET).network.tags
    norms = {name for name in initial if "norm" in tags[name]}
    assert norms
    for kept in result.private.values():
        assert set(kept.model) == norms
    assert all(same_bits(result.server.model[name], initial[name]) for name in norms)


def test_fedbn_without_such_layers_is_fedavg_and_says_so():
    assert ran(FedBN(), EVERYONE).server == ran(FedAvg(), EVERYONE).server
    stage = toys.setting(FedBN())
    assert FedBN().remark(stage.server(0)) == "this network has no normalisation layers: this is FedAvg"
    assert FedBN().remark(toys.setting(FedBN(), **RESNET).server(0)) == ""


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: FedProx(prox_weight=-1.0), "algorithm.prox_weight = -1.0: must be at least 0"),
        (lambda: Ditto(personal_epochs=-1), "algorithm.personal_epochs = -1: must be at least 0"),
        (lambda: FedBABU(tune="haed"), "algorithm.tune: unknown tune 'haed'; did you mean 'head'?"),
        (lambda: FedAvgFT(tune_steps=-1), "algorithm.tune_steps = -1: must be at least 0"),
    ],
)
def test_wrong_values_are_refused(make, said):
    with pytest.raises(InputError) as error:
        make()
    assert str(error.value) == said
