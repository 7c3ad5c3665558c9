import random

import methods
import numpy as np
import pytest
import torch
import toys

from manyheads.algorithms import registry
from manyheads.algorithms.fedavg import FedAvg
from manyheads.algorithms.fedper import FedPer
from manyheads.algorithms.pfedkdh import PFedKDH
from manyheads.errors import InputError, RunError
from manyheads.events import Finished, RoundDone, Started, Warned
from manyheads.experiment import Experiment

MLP = {"model__name": "mlp", "model__hidden": [6], "model__dropout": 0.25}


def same(one, other):
    assert one.server == other.server
    assert one.private == other.private
    assert toys.plain(one.rows) == toys.plain(other.rows)


# rows


def test_a_run_has_a_row_before_training_and_one_a_round():
    result = toys.run(PFedKDH())
    assert [row["round"] for row in result.rows] == [-1, 0, 1, 2]
    assert [row["cohort"] for row in result.rows] == [[], *map(list, toys.COHORTS)]
    for row in result.rows:
        kinds = {(m["model"], m["data"], m["moment"], m["average"]) for m in row["metrics"] if not m["variant"]}
        moments = ["post_agg", "post_adapt"] + (["post_local"] if row["round"] >= 0 else [])
        assert kinds == {
            ("global", "global test", "post_agg", "micro"),
            *(("global", "client test", "post_agg", average) for average in ("macro", "micro")),
            *(("personal", "client test", moment, average) for moment in moments for average in ("macro", "micro")),
        }
        prior = [(m["model"], m["moment"], m["average"]) for m in row["metrics"] if m["variant"] == "prior"]
        assert prior == [("personal", "post_agg", "macro"), ("personal", "post_agg", "micro")]
        assert len(row["metrics"]) == len(kinds) + len(prior)
        if row["round"] >= 0:
            assert set(row["loss"]) == {"ce", "kd", "prox"}
            assert set(row["bytes"]["up"]) == set(row["bytes"]["down"]) == {str(k) for k in row["cohort"]}
    # after local training the cohort is measured; of absent clients the last value is carried
    tested = [rows[0]["tested"] for rows in toys.metrics(result, "personal", "post_local")[1:]]
    assert tested == [[0, 1, 2], [0, 1, 2, 3], [0, 1, 2, 3, 5]]
    left_out = [rows[0]["left_out"] for rows in toys.metrics(result, "personal", "post_local")[1:]]
    assert left_out == [0, 1, 1]


def test_methods_without_personal_models_measure_the_global_one():
    result = toys.run(FedAvg(), **MLP)
    assert {m["model"] for m in result.rows[0]["metrics"] if not m["variant"]} == {"global"}
    assert toys.metrics(result, "personal", "post_agg") == [[]] * 4
    assert result.accuracy("global", "global test", average="micro") == next(
        m["accuracy"] for m in result.rows[-1]["metrics"] if m["data"] == "global test"
    )
    with pytest.raises(InputError, match="personal"):
        result.accuracy()


def test_training_learns():
    everyone = {"cohorts": None, "train__participation": 1.0, "run__eval_every": 15}
    result = toys.run(FedAvg(), train__rounds=15, **everyone, model__name="mlp", model__hidden=[16])
    before = result.rows[0]["metrics"][0]["accuracy"]
    assert before < 0.6 < 0.9 < result.accuracy("global", "global test", average="micro")


def test_events(tmp_path):
    events = []
    result = toys.experiment(FedPer(), **MLP).run(tmp_path, events.append, "mine")
    assert events[0] == Started("mine", 3, 0, "serial")
    assert [e.row for e in events[1:-1]] == result.rows
    assert all(isinstance(e, RoundDone) for e in events[1:-1])
    assert events[-1] == Finished("mine", tmp_path)


# randomness


def test_a_run_uses_and_moves_no_global_generator():
    torch.manual_seed(1)
    np.random.seed(1)
    random.seed(1)
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    one = Experiment(toys.config(partition__clients=4, data__limit=200)).run()
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.array_equal(np.random.get_state()[1], before[1])
    assert random.getstate() == before[2]
    torch.manual_seed(2)
    np.random.seed(2)
    random.seed(2)
    same(Experiment(toys.config(partition__clients=4, data__limit=200)).run(), one)


@pytest.mark.parametrize("name", registry.names())
def test_no_method_uses_the_global_generators(name):
    torch.manual_seed(1)
    before = torch.get_rng_state()
    one = toys.run(toys.method(name))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    same(toys.run(toys.method(name)), one)


def test_a_longer_run_begins_like_a_shorter_one():
    short, long = (toys.run(PFedKDH(), train__rounds=rounds, cohorts=toys.COHORTS) for rounds in (2, 3))
    assert [row["loss"] for row in long.rows[:3]] == [row["loss"] for row in short.rows]
    assert [row["bytes"] for row in long.rows[:3]] == [row["bytes"] for row in short.rows]


# resume


@pytest.fixture(scope="module")
def whole():
    return toys.run(PFedKDH())


@pytest.mark.parametrize("stop", [-1, 0, 1, 2])
def test_a_run_goes_on_after_a_stop(tmp_path, stop, whole):
    with pytest.raises(KeyboardInterrupt):
        toys.experiment(PFedKDH()).run(tmp_path, toys.raising(stop))
    events = []
    resumed = Experiment.resume(tmp_path, dataset=toys.dataset(), algorithm=PFedKDH(), on_event=events.append)
    same(resumed, whole)
    assert events[0] == Started("pfedkdh", 3, stop + 1, "serial")
    assert [e.round for e in events if isinstance(e, RoundDone)] == list(range(stop + 1, 3))


@pytest.mark.parametrize("stop", [0, 2])
def test_a_run_goes_on_after_a_stop_within_a_round(tmp_path, stop, whole, monkeypatch):
    real = PFedKDH.aggregate

    def dies(self, server, uploads, ctx):
        if ctx.round == stop:
            raise KeyboardInterrupt
        return real(self, server, uploads, ctx)

    monkeypatch.setattr(PFedKDH, "aggregate", dies)
    with pytest.raises(KeyboardInterrupt):
        toys.experiment(PFedKDH()).run(tmp_path)
    monkeypatch.setattr(PFedKDH, "aggregate", real)
    same(toys.resume(tmp_path, PFedKDH()), whole)


def test_a_folder_changes_no_bit(tmp_path, whole):
    stored = toys.run(PFedKDH(), folder=tmp_path)
    same(stored, whole)
    assert stored.folder == tmp_path
    again = toys.resume(tmp_path, PFedKDH())  # a finished run has nothing left to do
    same(again, whole)


def test_other_data_are_refused_on_resume(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        toys.experiment(FedPer(), **MLP).run(tmp_path, toys.raising(0))
    other = toys.dataset_from_arrays(*toys.images(160, 9), *toys.images(40, 2), name="toy")
    with pytest.raises(InputError, match="holds other images or labels"):
        Experiment.resume(tmp_path, dataset=other, algorithm=FedPer())


# what is not finite


def test_a_loss_that_explodes_stops_the_run():
    with pytest.raises(RunError) as caught:
        toys.run(FedPer(), train__lr=1e6, train__weight_decay=0.1, train__epochs=4)
    message = str(caught.value)
    assert message.startswith("round 0, client 0: loss term 'ce' is ")
    assert "train.lr" in message
    assert "\n" not in message


def test_the_server_s_loss_is_watched_as_well():
    with pytest.raises(RunError, match="round 0, the server: loss term 'ce' is"):
        toys.run(PFedKDH(warmup_epochs=30), train__lr=1e6)


def test_an_upload_that_is_not_finite_stops_the_run():
    with pytest.raises(RunError, match=r"^round 1, client 1: the upload's 'model/backbone\.fc\.bias' is not finite$"):
        toys.run(methods.Poisoned())


def test_a_client_whose_upload_is_not_finite_is_dropped(overheard):
    events = []
    result = toys.experiment(methods.Poisoned(), run__non_finite="drop").run(None, events.append)
    row = result.rows[2]
    assert list(row["dropped"]) == ["1"]
    assert "the upload's 'model/backbone.fc.bias' is not finite" in row["dropped"]["1"]
    assert row["cohort"] == [1, 3, 4]
    assert sorted(row["bytes"]["up"]) == ["3", "4"]
    assert sorted(row["bytes"]["down"]) == ["1", "3", "4"]
    (warning,) = [e for e in events if isinstance(e, Warned)]
    assert warning.message.startswith("client 1 is left out of the round: round 1, client 1:")
    assert all("dropped" not in r for r in result.rows if r is not row)
    # it keeps what it had before the round, and the others are averaged without it
    without = toys.run(FedPer(), cohorts=[[0, 1, 2], [3, 4], [0, 3, 5]])
    assert result.private == without.private
    assert result.server == without.server
    assert row["loss"] == without.rows[2]["loss"]
    assert row["metrics"] == without.rows[2]["metrics"]


def test_a_client_that_is_dropped_in_its_first_round_keeps_nothing():
    result = toys.run(methods.Poisoned(client=4, at=1), run__non_finite="drop")
    assert sorted(result.private) == [0, 1, 2, 3, 5]


def test_a_round_in_which_all_are_dropped_changes_nothing():
    cohorts = [[0, 1], [1], [0]]
    result = toys.run(methods.Poisoned(), cohorts=cohorts, run__non_finite="drop")
    assert list(result.rows[2]["dropped"]) == ["1"]
    assert result.rows[2]["loss"] == {}
    assert result.rows[2]["metrics"] == result.rows[1]["metrics"]


def test_a_loss_that_explodes_drops_the_client():
    result = toys.run(FedPer(), train__lr=1e6, train__weight_decay=0.1, train__epochs=4, run__non_finite="drop")
    assert set(result.rows[1]["dropped"]) <= {"0", "1", "2"}
    assert "0" in result.rows[1]["dropped"]
    assert all(bool(torch.isfinite(t).all()) for t in result.server.model.values())


# cohorts


@pytest.mark.parametrize(
    ("cohorts", "message"),
    [
        ([[0], [1]], r"cohorts: 2 rounds .* 3"),
        ([[0], [1], [6]], r"cohorts: client 6 of round 2 must be in 0\.\.5"),
        ([[0], [1, 1], [2]], r"cohorts: client 1 of round 1 .* once"),
    ],
)
def test_cohorts_that_do_not_fit(cohorts, message):
    with pytest.raises(InputError, match=message):
        toys.experiment(FedPer(), cohorts=cohorts)


@pytest.mark.parametrize("made", [np.array([[0, 2], [3, 1], [0, 4]]), [[np.int64(0), 2], (np.int32(3), 1), [0, 4]]])
def test_cohorts_of_numpy(tmp_path, made):
    with pytest.raises(KeyboardInterrupt):
        toys.experiment(FedPer(), cohorts=made, **MLP).run(tmp_path, toys.raising(0))
    plain = toys.run(FedPer(), cohorts=[[0, 2], [3, 1], [0, 4]], **MLP)
    same(toys.run(FedPer(), cohorts=made, **MLP), plain)
    same(toys.resume(tmp_path, FedPer()), plain)
