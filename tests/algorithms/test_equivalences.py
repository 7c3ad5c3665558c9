"""Methods that must be each other bit for bit: three rounds with dropout, of all clients or of half of them."""

from functools import cache

import methods
import pytest
import toys

from manyheads.algorithms.fedavg import FedAvg
from manyheads.algorithms.fedper import FedPer
from manyheads.algorithms.pfedkdh import PFedKDH

EVERYONE = tuple([tuple(range(6))] * 3)
both = pytest.mark.parametrize("cohorts", [EVERYONE, toys.COHORTS], ids=["all", "half"])


@cache
def ran(method, cohorts, **values):
    """The result and the uploads of a run; runs are shared by the tests of this file."""
    with pytest.MonkeyPatch.context() as patch:
        heard = toys.listen(patch)
        return toys.run(method, cohorts=cohorts, **values), heard


def up(result):
    return [row["bytes"]["up"] for row in result.rows]


@both
def test_pfedkdh_without_its_terms_is_fedper(cohorts):
    fedper, fedper_heard = ran(FedPer(), cohorts)
    pfedkdh, pfedkdh_heard = ran(PFedKDH(kd_weight=0.0, prox_weight=0.0), cohorts)
    assert pfedkdh.server.model.part("backbone") == fedper.server.model.part("backbone")
    assert pfedkdh.server.model.part("head") != fedper.server.model.part("head")
    assert pfedkdh.private == fedper.private
    assert pfedkdh_heard == fedper_heard
    assert up(pfedkdh) == up(fedper)
    for moment in ("post_agg", "post_local"):
        for average in ("macro", "micro"):
            rows = toys.metrics(fedper, "personal", moment, average)
            assert toys.metrics(pfedkdh, "personal", moment, average) == rows
            assert any(rows)
    assert len(fedper_heard) == sum(map(len, cohorts))


@both
def test_fedper_that_shares_everything_is_fedavg(cohorts):
    shared, shared_heard = ran(methods.FedPerSharingAll(), cohorts)
    fedavg, fedavg_heard = ran(FedAvg(), cohorts)
    assert shared.server == fedavg.server
    assert shared_heard == fedavg_heard

    def without_prior(rows):
        return [{**row, "metrics": [m for m in row["metrics"] if m["variant"] == ""]} for row in toys.plain(rows)]

    assert without_prior(shared.rows) == without_prior(fedavg.rows)


@both
def test_the_terms_of_pfedkdh_matter(cohorts):
    # otherwise the tests above would prove nothing
    off = ran(PFedKDH(kd_weight=0.0, prox_weight=0.0), cohorts)[1]
    for on in (PFedKDH(kd_weight=0.2, prox_weight=0.0), PFedKDH(kd_weight=0.0, prox_weight=0.01)):
        assert ran(on, cohorts)[1] != off


@both
def test_a_step_rule_of_sgd_is_fedavg(cohorts):
    scanned, heard = ran(methods.ScanAvg(), cohorts)
    fedavg, fedavg_heard = ran(FedAvg(), cohorts)
    assert scanned.server == fedavg.server
    assert heard == fedavg_heard


def test_no_adaptation_step_leaves_the_personal_model():
    result, _ = ran(PFedKDH(adapt_steps=0), toys.COHORTS)
    for average in ("macro", "micro"):
        rows = toys.metrics(result, "personal", "post_adapt", average)
        assert rows == toys.metrics(result, "personal", "post_agg", average)
        assert all(rows)


@pytest.mark.parametrize("measured", [{"run__eval_every": 3}, {"run__adapt_every": 2}])
def test_measuring_changes_no_training_bit(measured):
    often, often_heard = ran(PFedKDH(), toys.COHORTS)
    seldom, seldom_heard = ran(PFedKDH(), toys.COHORTS, **measured)
    without, without_heard = ran(PFedKDH(adapt_steps=0), toys.COHORTS)
    assert often.server == seldom.server == without.server
    assert often.private == seldom.private == without.private
    assert often_heard == seldom_heard == without_heard
    assert [row["loss"] for row in often.rows] == [row["loss"] for row in seldom.rows]
    for index in (0, 3):  # before training and at the end both are there, and equal
        assert toys.plain(seldom.rows)[index] == toys.plain(often.rows)[index]
    measured_rounds = [bool(row["metrics"]) for row in seldom.rows]
    adapted = [bool(rows) for rows in toys.metrics(seldom, "personal", "post_adapt")]
    if "run__eval_every" in measured:
        assert measured_rounds == [True, False, False, True]
    else:
        assert measured_rounds == [True] * 4
        assert adapted == [True, False, True, True]


def test_runs_repeat_and_seeds_differ():
    _, heard = ran(FedPer(), toys.COHORTS)
    with pytest.MonkeyPatch.context() as patch:
        again = toys.listen(patch)
        toys.run(FedPer())
    assert again == heard
    assert ran(FedPer(), toys.COHORTS, run__seed=1)[1] != heard


def test_methods_share_their_cohorts():
    a, b = (toys.run(m, cohorts=None, model__name="mlp", model__hidden=[4]) for m in (FedAvg(), FedPer()))
    assert [row["cohort"] for row in a.rows] == [row["cohort"] for row in b.rows]
    assert [len(row["cohort"]) for row in a.rows] == [0, 3, 3, 3]
