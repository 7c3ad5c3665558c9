"""Every method on ``digits``: twelve unequal clients at alpha 0.1, three rounds, half of the clients in each.

Some clients hold one class, one has three images, and one first takes part in the last round.
"""

import math
from functools import cache
from itertools import accumulate

import numpy as np
import pytest
import torch
import toys

from manyheads.algorithms import registry
from manyheads.config import Config
from manyheads.contract import Part, Tree, Upload
from manyheads.data.partition import Partition, make_partition
from manyheads.data.sources import load
from manyheads.errors import RunError
from manyheads.experiment import Experiment
from manyheads.local.client import ClientRoom
from manyheads.storage.log import read_rows

CLIENTS, ROUNDS = 12, 3
SMALL, LATE = 3, 11
COHORTS = [[0, 1, 2, 3, 4, 5], [0, 3, 6, 7, 8, 9], [3, 4, 6, 8, 10, LATE]]
every_method = pytest.mark.parametrize("name", registry.names())


@cache
def digits():
    return load("digits", None, 700)


@cache
def partition():
    """Alpha 0.1; the client ``SMALL`` keeps three images of two classes, some lose all but one class."""
    data = digits()
    drawn = make_partition(
        "dirichlet",
        data.train.labels,
        data.test.labels,
        classes=10,
        clients=CLIENTS,
        seed=1,
        auxiliary=60,
        min_train=4,
        options={"alpha": 0.1},
    )
    train = [rows[:30] for rows in drawn.train]
    labels = data.train.labels
    for client in (1, LATE):
        train[client] = train[client][labels[train[client]] == labels[train[client][0]]]
    other = next(row for row in train[SMALL] if labels[row] != labels[train[SMALL][0]])
    same = [row for row in train[SMALL] if labels[row] == labels[train[SMALL][0]]]
    train[SMALL] = np.array(sorted([*same[:2], other]), np.int64)
    return Partition(tuple(train), drawn.validation, drawn.test, drawn.auxiliary, "unequal")


def experiment(name, engine="serial"):
    values = {
        "data.source": "digits",
        "partition.clients": CLIENTS,
        "model.name": "cnn",
        "model.kernel": 3,
        "model.padding": 1,
        "model.widths": [2, 3],
        "model.features": 6,
        "train.rounds": ROUNDS,
        "train.batch": 8,
        "train.epochs": 2,
        "train.lr": 0.05,
        "run.engine": engine,
        "run.workers": 2,
        "algorithm.name": name,
        **{f"algorithm.{key}": value for key, value in vars(toys.method(name)).items()},
    }
    return Experiment(Config().with_values(values), dataset=digits(), partition=partition(), cohorts=COHORTS)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return tmp_path_factory.mktemp("every-method")


@pytest.fixture(scope="module")
def ran(folders):
    """A method's whole run, with its uploads; run once."""

    @cache
    def run(name):
        with pytest.MonkeyPatch.context() as patch:
            heard = toys.listen(patch)
            return experiment(name).run(folders / name), heard

    return run


def test_the_federation_is_what_it_says():
    labels = [digits().train.labels[rows] for rows in partition().train]
    assert len(labels[SMALL]) == 3
    assert sum(len(np.unique(some)) == 1 for some in labels) >= 2
    assert [round for round, cohort in enumerate(COHORTS) if LATE in cohort] == [ROUNDS - 1]
    assert all(SMALL in cohort for cohort in COHORTS)


@every_method
def test_it_runs(name, ran):
    result, _ = ran(name)
    main = [row for row in result.rows if "stage" not in row]
    assert [row["round"] for row in main] == [-1, 0, 1, 2]
    assert main[-1]["metrics"]
    for metric in main[-1]["metrics"]:
        assert 0 <= metric["accuracy"] <= 1
    for row in main[1:]:
        assert row["loss"]
        assert all(map(math.isfinite, row["loss"].values()))
    assert set(result.private) >= {client for cohort in COHORTS for client in cohort}


def stage_of(name, round):
    """The stage that a round belongs to; rounds before the main stage count up to -1."""
    stages = experiment(name).algorithm.stages(ROUNDS)
    before = sum(stage.rounds for stage in stages[:-1])
    ends = list(accumulate(stage.rounds for stage in stages))
    return next(stage for stage, end in zip(stages, ends, strict=True) if round + before < end)


@every_method
def test_uploads_hold_what_is_declared_and_no_more(name, ran):
    result, heard = ran(name)
    sizes = {(row["round"], int(c)): n for row in result.rows for c, n in row["bytes"]["up"].items()}
    assert set(heard) == set(sizes)
    assert {key for key in heard if stage_of(name, key[0]).algorithm == experiment(name).algorithm} >= {
        (stage_round, client) for stage_round, client in heard if stage_round >= 0
    }
    for (round, client), data in heard.items():
        stage = experiment(name).setting(stage_of(name, round))
        ctx, words, algorithm = stage.client(round, client), stage.words(client), stage.algorithm
        upload = Upload.from_bytes(data)
        allowed = {"weight": (), **algorithm.sends, "model": algorithm.uploaded(ctx)}
        expected = {}
        for field, declared in allowed.items():
            if isinstance(declared, Part):
                expected |= {f"{field}/{key}": t.shape for key, t in ctx.take(ctx.initial, declared).items()}
            elif declared:
                expected[field] = tuple(size for word in declared for size in words.get(word, (word,)))
        assert set(upload) <= set(allowed)
        assert {key: t.shape for key, t in upload.tensors().items()} == expected
        # the file has room for these tensors and a header that names them, and for nothing else
        tensors = sum(t.numel() * t.element_size() for t in upload.tensors().values())
        header = 8 + int.from_bytes(data[:8], "little")
        assert len(data) == header + tensors == sizes[round, client]
        assert data == upload.to_bytes()


@every_method
def test_a_resumed_run_has_the_same_bits(name, ran, folders):
    whole, _ = ran(name)
    path = folders / f"{name}-stopped"
    with pytest.raises(KeyboardInterrupt):
        experiment(name).run(path, on_event=toys.raising(after=1))
    assert read_rows(path / "rounds.jsonl")[-1]["round"] == 1
    resumed = Experiment.resume(path, dataset=digits())
    assert resumed.server == whole.server
    assert resumed.private == whole.private
    assert toys.plain(resumed.rows) == toys.plain(whole.rows)


SOME = ("apfl", "fedecouple", "fedfed", "fedpac", "pfedkdh", "scaffold")  # in make test; all of them in make test-all
on_every_engine = [
    pytest.param(name, engine, marks=[] if name in SOME and engine != "ray" else pytest.mark.slow)
    for name in registry.names()
    for engine in ("threads", "processes", "wire", "ray")
]


@pytest.mark.parametrize(("name", "engine"), on_every_engine)
def test_every_engine_gives_the_same_bits(name, engine, ran, overheard):
    if engine == "ray":
        pytest.importorskip("ray")
    serial, heard = ran(name)
    overheard.clear()
    other = experiment(name, engine).run()
    assert other.server == serial.server
    assert other.private == serial.private
    assert overheard == heard
    assert toys.plain(other.rows) == toys.plain(serial.rows)


@every_method
def test_a_nan_in_an_upload_is_caught_by_name(name, monkeypatch):
    real = ClientRoom.update

    def update(self, task, test):
        reply = real(self, task, test)
        if (task.round, task.client) != (0, SMALL):
            return reply
        upload = Upload.from_bytes(reply.upload)
        return type(reply)(**{**vars(reply), "upload": spoiled(upload).to_bytes()})

    monkeypatch.setattr(ClientRoom, "update", update)
    with pytest.raises(RunError, match=f"^round 0, client {SMALL}: the upload's '.*' is not finite$"):
        experiment(name).run()


def spoiled(upload):
    """The upload with a NaN in one of its numbers."""

    def nan(tensor):
        tensor = tensor.clone()
        tensor.view(-1)[-1] = torch.nan
        return tensor

    for field in upload:
        value = upload.get(field)
        if isinstance(value, Tree) and value:
            name = next(iter(value))
            return upload.replace(**{field: value | Tree({name: nan(value[name])})})
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            return upload.replace(**{field: nan(value)})
    return upload.replace(weight=math.nan)
