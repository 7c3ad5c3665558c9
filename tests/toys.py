"""A tiny federation: four classes of 8x8 images, and six clients; one has three images, another no test image."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from manyheads import rounds
from manyheads.algorithms import registry
from manyheads.algorithms.fedavg import FedAvg
from manyheads.config import Config
from manyheads.contract import SGD, Algorithm, ClientContext, Data, Upload
from manyheads.data.dataset import Dataset, dataset_from_arrays
from manyheads.data.federated import Federation
from manyheads.data.partition import Partition
from manyheads.experiment import Experiment
from manyheads.local.client import Reply
from manyheads.local.network import Network
from manyheads.local.setting import Budget, Setting
from manyheads.local.training import LocalTrainer
from manyheads.models.registry import build
from manyheads.result import Result

CLASSES = 4
SIZES = (40, 3, 25, 17, 9, 12)  # with a batch of 8: 25, 17 and 9 end in a single image
TESTS = (8, 6, 8, 7, 0, 8)
COHORTS = ((0, 1, 2), (1, 3, 4), (0, 3, 5))  # half of the clients; client 5 first takes part in the last round

Heard = dict[tuple[int, int], bytes]


def images(n: int, seed: int, side: int = 8) -> tuple[np.ndarray, np.ndarray]:
    """Noise in which a quarter of the image, one for each class, is brighter."""
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % CLASSES
    x = rng.integers(0, 120, (n, side, side, 1))
    half = side // 2
    for i, label in enumerate(labels):
        top, left = divmod(int(label), 2)
        x[i, top * half : (top + 1) * half, left * half : (left + 1) * half] += 80
    return x.astype(np.uint8), labels


@cache
def dataset() -> Dataset:
    """160 train images and 40 test images."""
    return dataset_from_arrays(*images(160, 1), *images(40, 2), name="toy")


@cache
def partition(sizes: Sequence[int] = SIZES, tests: Sequence[int] = TESTS, auxiliary: int = 20) -> Partition:
    """Each client has mostly two classes, and others where these run out; D_s holds the last images."""
    pool = list(range(160 - auxiliary))
    train = []
    for client, size in enumerate(sizes):
        wanted = {client % CLASSES, (client + 1) % CLASSES}
        mine = sorted(pool, key=lambda i: (i % CLASSES not in wanted, i))[:size]
        pool = [i for i in pool if i not in mine]
        train.append(np.array(sorted(mine), np.int64))
    cuts = np.cumsum((0, *tests))
    test = [np.arange(a, b, dtype=np.int64) for a, b in pairwise(cuts)]
    nothing = np.zeros(0, np.int64)
    ds = np.arange(160 - auxiliary, 160, dtype=np.int64)
    return Partition(tuple(train), tuple(nothing for _ in sizes), tuple(test), ds, "toy")


def config(**values: Any) -> Config:
    """Three rounds of a small CNN with dropout; ``train__lr=1.0`` is the key ``train.lr``."""
    base = {
        "model.name": "cnn",
        "model.kernel": 3,
        "model.padding": 1,
        "model.widths": [3, 4],
        "model.features": 8,
        "model.dropout": 0.25,
        "train.rounds": 3,
        "train.participation": 0.5,
        "train.epochs": 2,
        "train.batch": 8,
        "train.lr": 0.2,
        "run.engine": "serial",
    }
    given = {key.replace("__", "."): value for key, value in values.items()}
    if given.get("model.name", "cnn") != "cnn":
        base = {key: value for key, value in base.items() if not key.startswith("model.")}
    return Config().with_values(base | given)


def small() -> Config:
    """Two rounds of three clients whose network has four hidden units."""
    return config(
        partition__kind="iid",
        partition__clients=3,
        partition__min_train=2,
        data__auxiliary=12,
        model__name="mlp",
        model__hidden=[4],
        train__rounds=2,
        train__epochs=1,
    )


def method(name: str) -> Algorithm:
    """A shipped method with its defaults, where these are quick."""
    quick = {"fedfed": {"distill_rounds": 1, "channels": 2, "latent": 4}}
    return registry.load(name)(**quick.get(name, {}))


def experiment(
    algorithm: Algorithm | None = None, cohorts: Sequence[Sequence[int]] | None = COHORTS, **values: Any
) -> Experiment:
    """An experiment on the tiny federation."""
    data = values.pop("dataset", None) or dataset()
    parts = values.pop("partition", None) or partition()
    model = values.pop("model", None)
    return Experiment(
        config(**values), dataset=data, partition=parts, cohorts=cohorts, algorithm=algorithm, model=model
    )


def run(algorithm: Algorithm | None = None, folder: Path | None = None, **values: Any) -> Result:
    """The result of an experiment on the tiny federation."""
    return experiment(algorithm, **values).run(folder)


def resume(folder: Path, algorithm: Algorithm | None = None) -> Result:
    """Goes on with a run of the tiny federation."""
    return Experiment.resume(folder, dataset=dataset(), algorithm=algorithm)


def plain(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows without what may differ between two runs."""
    return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]


def metrics(result: Result, model: str, moment: str, average: str = "macro", data: str = "client test") -> list[Any]:
    """The metric rows of one kind, round by round, without those of a variant with the clients' prior."""
    return [
        [
            {k: v for k, v in m.items() if k != "moment"}
            for m in row["metrics"]
            if (m["model"], m["moment"], m["average"], m["data"]) == (model, moment, average, data)
            and m["variant"] != "prior"
        ]
        for row in result.rows
    ]


def listen(monkeypatch: pytest.MonkeyPatch) -> Heard:
    """Writes down every upload that comes in from now on."""
    heard: Heard = {}
    real = rounds._received

    def received(reply: Reply, round: int) -> Upload:
        heard[round, reply.client] = reply.upload
        return real(reply, round)

    monkeypatch.setattr(rounds, "_received", received)
    return heard


def setting(algorithm: Algorithm | None = None, buffers: str = "average", **values: Any) -> Setting:
    """A stage of the tiny federation."""
    resolved = config(**values)
    model, train = resolved.model, resolved.train
    budget = Budget(train.epochs, train.batch, SGD(train.lr, train.momentum, train.weight_decay, train.clip))
    return Setting.make(
        algorithm or FedAvg(),
        lambda: build(model.name, shape=(1, 8, 8), classes=CLASSES, options=model.options),
        Federation(dataset(), partition()),
        budget,
        train.rounds,
        resolved.run.seed,
        buffers,
    )


@dataclass
class Values:
    """Images as they are."""

    values: torch.Tensor
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        return self.values[rows]


def data(x: Sequence[float] | torch.Tensor, y: Sequence[int] | None = None) -> Data:
    """Samples given directly: numbers become images of one pixel."""
    values = x if isinstance(x, torch.Tensor) else torch.tensor(x, dtype=torch.float32).reshape(-1, 1, 1, 1)
    labels = torch.tensor([0] * len(values) if y is None else y)
    return Data(Values(values), torch.arange(len(values)), labels)


def context(network: Network, **changes: Any) -> ClientContext:
    """A client's context for a network of one's own: one epoch, one batch, step size 0.1."""
    values: dict[str, Any] = {
        "initial": network.initial,
        "tags": network.tags,
        "round": 0,
        "rounds": 1,
        "clients": 1,
        "classes": 2,
        "feature_dim": 1,
        "epochs": 1,
        "sgd": SGD(0.1),
        "batch": 64,
        "seed": 0,
        "party": 0,
        "trainer": LocalTrainer(network),
    }
    return ClientContext(**(values | changes))


def raising(after: int) -> Callable[[Any], None]:
    """A listener that fails when round ``after`` has ended."""

    def on_event(event: Any) -> None:
        if getattr(event, "row", {"round": None})["round"] == after:
            raise KeyboardInterrupt

    return on_event
