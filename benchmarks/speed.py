"""How fast a round trains beside a plain loop, and beside what torch reaches here: `python -m benchmarks.speed`.

A round is FedAvg with ten clients of unequal size and the papers' CNN, on random images as large as MNIST's and
CIFAR-10's. Ours goes through the threads engine, in fp32 and, where the processor has it, bf16. Plain is what a
researcher writes first: a DataLoader, torch's default layout, a deep copy of the model for each client, torch's default
threads. The rates are those of matrix products and of the CNN's own convolutions, one thread a core.

Every variant has a process of its own, which sleeps while another one works; they take turns, the first of which warms
up. A turn has as many rounds as take at least a second for 4,000 images, since what has slept is slow at first and the
rounds of a run follow each other. After some turns the processes end and others start: how quick a loop is depends on
where its memory happens to lie, by up to a fifth for the plain one. Ratios are paired by set of processes, of medians
over its turns; intervals hold 90 % of a t distribution over the logarithms. MKL keeps its buffers in all variants,
since torch is imported first, and the memory of a run is trimmed after its rounds, not in these. The last line is JSON.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from scipy import stats
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.common import SIZES, Program, synthetic, timed
from benchmarks.rates import BATCH, CLASSES, FEATURES, KERNEL, TYPES, WIDTHS, flops, rate_names, rates, shape
from manyheads.algorithms.fedavg import FedAvg
from manyheads.contract import SGD, Upload
from manyheads.data.federated import Federation
from manyheads.data.partition import Partition
from manyheads.engines import make_engine, one_thread
from manyheads.engines.base import cores
from manyheads.local.client import Task
from manyheads.local.precision import has_bf16
from manyheads.local.setting import Budget, Setting
from manyheads.models.zoo import cnn

SHARES = (20, 17, 14, 12, 10, 8, 7, 5, 4, 3)  # of the images, in per cent, by client: a run too has its longest first

LR = 0.015

Round = Callable[[], object]


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="less than three minutes on two quiet cores")
    quick = parser.parse_args().quick
    images, turns, seconds = (2_000, 3, 50) if quick else (6_000, 4, 450)
    summary: dict[str, Any] = {}
    rounds = Table("images", "variant", "s/round", "samples/s", "times plain", "of GEMM", "of conv.")
    reached = Table("GFLOP/s", *rate_names())
    for like in SIZES:
        summary[like] = found = _summary(list(_sets(like, images, turns, seconds)), sum(_sizes(images)), flops(like))
        for variant in (name for name in ("plain", *TYPES) if name in found):
            rounds.add_row(like, variant, *_cells(found[variant]))
        reached.add_row(like, *(f"{found[name]:.0f}" for name in rate_names()))
    for table in (rounds, reached):
        Console().print(table)
    print(json.dumps(summary))


def _cells(found: Mapping[str, float]) -> list[str]:
    ratio = "{ratio:.2f} ({low:.2f} to {high:.2f})".format(**found) if "ratio" in found else ""
    shares = [f"{100 * found[key]:.0f} %" for key in ("of_gemm", "of_conv")]
    return [f"{found['seconds']:.2f}", f"{found['samples_per_second']:.0f}", ratio, *shares]


def _sets(like: str, images: int, turns: int, seconds: float) -> Iterator[dict[str, float]]:
    """Median seconds by variant over some turns, of one set of processes after the other."""
    variants = ["plain", "fp32", *(["bf16"] if has_bf16() else []), "rates"]
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    began, done = time.perf_counter(), 0
    while done < 3 or time.perf_counter() - began < seconds:
        with ExitStack() as stack:
            programs = [
                stack.enter_context(Program("benchmarks.speed", variant, like, str(images), env=environment))
                for variant in variants
            ]
            found = [_turn(programs, first=number % len(programs)) for number in range(1 + turns)][1:]
        yield {name: statistics.median(turn[name] for turn in found) for name in found[0]}
        done += 1


def _turn(programs: Sequence[Program], first: int) -> dict[str, float]:
    """What all of the programs measure, one after the other."""
    found: dict[str, float] = {}
    for program in [*programs[first:], *programs[:first]]:
        found |= program.ask()
    return found


def _serve(variant: str, like: str, images: int) -> None:
    """The program of a process that measures one variant whenever it is asked."""
    if variant == "rates":
        measure = rates(like)
    else:
        run = _plain(like, images) if variant == "plain" else _ours(like, images, variant)

        def measure() -> dict[str, float]:
            rounds = [timed(run)]
            while sum(rounds) < images / 4_000:
                rounds.append(timed(run))
            return {variant: statistics.mean(rounds)}

    for _ in sys.stdin:
        print(json.dumps(measure()), flush=True)


def _summary(sets: Sequence[Mapping[str, float]], images: int, work: float) -> dict[str, Any]:
    """Medians over the sets of processes, and ratios to the plain loop."""
    summary: dict[str, Any] = {}
    for variant in (v for v in ("plain", *TYPES) if v in sets[0]):
        median = statistics.median(one[variant] for one in sets)
        summary[variant] = {"seconds": median, "samples_per_second": images / median}
        if variant != "plain":
            summary[variant] |= _interval([one["plain"] / one[variant] for one in sets])
        for kind in ("gemm", "conv"):
            rate = f"{kind} {variant if variant in TYPES else 'fp32'}"
            summary[variant][f"of_{kind}"] = statistics.median(images / one[variant] * work / one[rate] for one in sets)
    for name in rate_names():
        summary[name] = statistics.median(one[name] for one in sets) / 1e9
    return summary


def _interval(ratios: Sequence[float]) -> dict[str, float]:
    """The geometric mean and its 90 % interval."""
    logs = np.log(ratios)
    half = stats.t.ppf(0.95, len(logs) - 1) * logs.std(ddof=1) / len(logs) ** 0.5
    low, middle, high = np.exp([logs.mean() - half, logs.mean(), logs.mean() + half]).tolist()
    return {"ratio": middle, "low": low, "high": high}


def _sizes(images: int) -> list[int]:
    return [images * share // 100 for share in SHARES]


def _federation(like: str, images: int) -> Federation:
    data = synthetic(like, images / SIZES[like][0])
    cuts = np.cumsum([0, *_sizes(images)])
    train = tuple(np.arange(a, b) for a, b in pairwise(cuts))
    test = tuple(np.arange(10) + 10 * client for client in range(len(train)))
    nothing = np.zeros(0, np.int64)
    return Federation(data, Partition(train, tuple(nothing for _ in train), test, nothing, "speed"))


def _ours(like: str, images: int, precision: str) -> Round:
    """A round on the threads engine: broadcast, local updates, uploads as bytes, aggregation."""
    parties, algorithm = _federation(like, images), FedAvg()
    setting = Setting.make(
        algorithm,
        lambda: cnn(shape=shape(like), classes=CLASSES),
        parties,
        Budget(1, BATCH, SGD(LR)),
        rounds=1,
        seed=0,
        buffers="average",
        half=precision == "bf16",
    )
    ctx = setting.server(0)
    server = algorithm.init_server(ctx)

    def run() -> None:
        nonlocal server
        tasks = (Task(client, 0, algorithm.broadcast(server, client, ctx), None) for client in range(len(SHARES)))
        with one_thread(), make_engine("threads", cores(), setting) as engine:
            uploads = {reply.client: Upload.from_bytes(reply.upload) for reply in engine.update(tasks, False)}
            server = algorithm.aggregate(server, dict(sorted(uploads.items())), ctx)

    return run


def _plain(like: str, images: int) -> Round:
    """The loop that one writes first."""
    parties = _federation(like, images)
    channels, height, width = shape(like)
    (h, w), (first, second) = [(height, width), WIDTHS]
    for _ in WIDTHS:
        h, w = (h - KERNEL + 1) // 2, (w - KERNEL + 1) // 2
    model = nn.Sequential(
        nn.Conv2d(channels, first, KERNEL),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(first, second, KERNEL),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.25),
        nn.Flatten(),
        nn.Linear(second * h * w, FEATURES),
        nn.ReLU(),
        nn.Linear(FEATURES, CLASSES),
    )
    clients = []
    for client in range(parties.clients):
        data = parties.train(client)
        x = data.x(torch.arange(len(data))).clone(memory_format=torch.contiguous_format)
        clients.append(DataLoader(TensorDataset(x, data.y), batch_size=BATCH, shuffle=True))

    def run() -> None:
        trained = [_trained(copy.deepcopy(model), loader) for loader in clients]
        weights = torch.tensor(_sizes(images)) / sum(_sizes(images))
        mean = {
            name: sum(weight * local[name] for weight, local in zip(weights, trained, strict=True))
            for name in model.state_dict()
        }
        model.load_state_dict(mean)

    return run


def _trained(model: nn.Module, loader: DataLoader[tuple[Tensor, ...]]) -> dict[str, Tensor]:
    optimizer, criterion = torch.optim.SGD(model.parameters(), lr=LR), nn.CrossEntropyLoss()
    model.train()
    for x, y in loader:
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()
    return model.state_dict()


if __name__ == "__main__":
    if len(sys.argv) == 4:
        _serve(sys.argv[1], sys.argv[2], int(sys.argv[3]))
    else:
        main()
