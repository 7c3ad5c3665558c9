"""What benchmarks share: data of a given size, and runs in processes of their own that go a round at a time.

The module is also the program of such a process: it gets the config as an argument, says after every round what it
took, as a line of JSON, and waits for a line before the next one. So several runs can be measured in turn.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

import numpy as np

from manyheads.config import Config
from manyheads.data.dataset import Dataset, dataset_from_arrays
from manyheads.data.partition import Partition
from manyheads.data.sources import load
from manyheads.events import Event, RoundDone
from manyheads.experiment import Experiment

MIB = 2**20
SIZES = {"mnist": (60_000, (28, 28, 1)), "cifar10": (50_000, (32, 32, 3))}
TEST = 10_000


def synthetic(like: str, share: float = 1.0) -> Dataset:
    """Random images and labels of ten classes, in the shape and number of ``mnist`` or ``cifar10``, or a share."""
    rng = np.random.default_rng(0)
    train, shape = SIZES[like]

    def split(n: int) -> tuple[np.ndarray, np.ndarray]:
        return rng.integers(0, 256, (n, *shape), dtype=np.uint8), rng.permutation(np.arange(n) % 10)

    return dataset_from_arrays(*split(int(train * share)), *split(int(TEST * share)), name=f"like {like}")


def equal(data: Dataset, clients: int, train: int, test: int) -> Partition:
    """So many train and test images for each client; what is left of the train images is the auxiliary set."""

    def pieces(each: int) -> tuple[np.ndarray, ...]:
        return tuple(np.arange(clients * each).reshape(clients, each))

    rest = np.arange(clients * train, len(data.train))
    return Partition(pieces(train), pieces(0), pieces(test), rest)


class Program:
    """A module in a process of its own, which answers every line that it reads with a line of JSON.

    It ends where there is no more to read.

    Args:
        module: its name.
        arguments: what it is called with.
        env: the variables that it sees; by default this process's.
    """

    def __init__(self, module: str, *arguments: str, env: Mapping[str, str] | None = None) -> None:
        command = [sys.executable, "-m", module, *arguments]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends the process, which may tidy up; one that is in the middle of something is killed."""
        try:
            self._process.communicate(timeout=10)  # which closes what it reads from
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()

    def ask(self) -> dict[str, Any]:
        """Lets the process go on, and waits for what it says then."""
        assert self._process.stdin is not None
        print(file=self._process.stdin, flush=True)
        return self.answer()

    def answer(self) -> dict[str, Any]:
        """What the process says next."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"a run ended early, with status {self._process.wait()}")
        return cast(dict[str, Any], json.loads(line))


class Run(Program):
    """A run in a process of its own, whose rounds are asked for one by one.

    Args:
        config: of the run, as dotted keys over the defaults.
        profile: the ready config to start from, if any.
        like: whose shape and number the synthetic images have.
        share: of that number.
        data_dir: where the real images are; None for synthetic ones.
        each: train and test images of a client, the next ones of the data; None for a partition as in the config.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        *,
        profile: str = "",
        like: str = "mnist",
        share: float = 1.0,
        data_dir: Path | None = None,
        each: tuple[int, int] | None = None,
    ) -> None:
        about = {"config": dict(config), "profile": profile, "like": like, "share": share}
        about |= {"data_dir": None if data_dir is None else str(data_dir), "each": each}
        super().__init__("benchmarks.common", json.dumps(about))
        self.answer()  # the test before training

    def round(self) -> dict[str, Any]:
        """Runs a round and says what it took.

        ``wall`` and ``cpu`` are its seconds, ``train``, ``aggregate`` and ``evaluate`` pieces of the former; ``rss`` is
        MiB after it, ``peak`` the most in it.
        """
        return self.ask()


def options(about: str | None, methods: Sequence[str] = ()) -> argparse.Namespace:
    """``--quick`` and ``--data-dir`` of a benchmark, whose docstring is ``about``, and some of ``methods``, if any."""
    parser = argparse.ArgumentParser(description=(about or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="smaller, in less than three minutes")
    parser.add_argument("--data-dir", type=Path, help="folder with MNIST's files; without it images are random")
    if methods:
        parser.add_argument("methods", nargs="*", metavar="METHOD", help="measure these only, in more turns")
    args = parser.parse_args()
    if unknown := sorted(set(getattr(args, "methods", ())) - set(methods)):
        parser.error(f"there is no method {unknown[0]!r}; there are {', '.join(methods)}")
    return args


def spread(ratios: Sequence[float]) -> str:
    """Median and quartiles, as ``1.07 (1.05 to 1.10)``."""
    low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else [ratios[0]] * 3
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


def timed(run: Callable[[], object]) -> float:
    """The seconds that ``run`` takes."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def rss() -> float:
    """Resident memory now, MiB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / MIB


def peak() -> float:
    """The most resident memory since ``forget_peak``, MiB; since the start where the system cannot forget."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["VmHWM"].split()[0]) / 1024


def forget_peak() -> None:
    """Begins to watch for ``peak`` anew."""
    Path("/proc/self/clear_refs").write_text("5")


def main(about: Mapping[str, Any]) -> None:
    """The program of a ``Run``."""
    config = Config.profile(about["profile"]) if about["profile"] else Config()
    folder = about["data_dir"] and Path(about["data_dir"])
    data = load(about["like"], folder) if folder else synthetic(about["like"], about["share"])
    config = config.with_values(about["config"])
    partition = equal(data, config.partition.clients, *about["each"]) if about["each"] else None
    experiment = Experiment(config, dataset=data, partition=partition)
    began = time.perf_counter(), time.process_time()

    def on_event(event: Event) -> None:
        nonlocal began
        if isinstance(event, RoundDone):
            took = {"wall": time.perf_counter() - began[0], "cpu": time.process_time() - began[1]}
            print(json.dumps({**took, "rss": rss(), "peak": peak(), **event.row["seconds"]}), flush=True)
            if not sys.stdin.readline():
                raise SystemExit  # the folder is removed
            forget_peak()
            began = time.perf_counter(), time.process_time()

    with tempfile.TemporaryDirectory() as temporary:
        experiment.run(Path(temporary) / "run", on_event)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
