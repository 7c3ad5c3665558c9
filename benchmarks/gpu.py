"""How long a round takes stacked, against one client after the other: `python -m benchmarks.gpu`.

pFedKDH at its Table 1 settings (profiles kdh-mnist and kdh-cifar10) on random images of these shapes: one seed, and
four seeds as one stack. A round is the cohort's training and the server's step, without tests. `serial` and
`vectorized` take turns on the same device; ratios are medians over rounds of serial seconds by vectorized seconds. The
last line is one line of JSON. `--quick` is a check that takes a minute on a CPU; without it, take a GPU.

It has not been run on a GPU yet: only with `--device cpu --quick`.
"""

import argparse
import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from benchmarks.common import synthetic, timed
from manyheads.config import Config
from manyheads.contract import ServerState, Upload
from manyheads.engines import one_thread
from manyheads.engines.vectorized import Meeting
from manyheads.experiment import Experiment
from manyheads.local.client import ClientRoom, Reply, Task
from manyheads.local.setting import Setting
from manyheads.schedule import cohort

PROFILES = {"kdh-mnist": "mnist", "kdh-cifar10": "cifar10"}
SEEDS = 4


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=("cpu", "cuda"))
    parser.add_argument("--quick", action="store_true", help="few images, one round")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("there is no CUDA device here; --device cpu --quick checks this script without one")
    found: dict[str, Any] = {"device": _device(options.device), "torch": torch.__version__, "quick": options.quick}
    with one_thread():
        for profile, like in PROFILES.items():
            seeds = [_seed(profile, like, seed, options.device, options.quick) for seed in range(SEEDS)]
            found[profile] = {}
            for label, some in (("one seed", seeds[:1]), ("four seeds", seeds)):
                found[profile][label] = measured = _measured(some, 1 if options.quick else 3)
                print(f"{profile}, {label}: {measured}", flush=True)
    print(json.dumps(found))


@dataclass(frozen=True)
class Seed:
    """One run: its stage, its server, and the clients of a round."""

    setting: Setting
    server: ServerState
    participation: float

    def tasks(self, number: int) -> list[Task]:
        """The cohort's turns in a round; nobody has taken part before."""
        setting, ctx = self.setting, self.setting.server(number)
        members = cohort(setting.seed, number, setting.parties.clients, self.participation)
        return [Task(client, number, setting.algorithm.broadcast(self.server, client, ctx), None) for client in members]

    def aggregate(self, replies: Sequence[Reply]) -> None:
        """The server's step; what comes of it is dropped, so that all rounds start alike."""
        uploads = {reply.client: Upload.from_bytes(reply.upload) for reply in sorted(replies, key=lambda r: r.client)}
        self.setting.algorithm.aggregate(self.server, uploads, self.setting.server(0))


def _measured(seeds: Sequence[Seed], rounds: int) -> dict[str, float]:
    """Median seconds a round, and the median ratio."""
    refused: list[str] = []
    meeting = Meeting(seeds[0].setting.network, lambda: False, refused.append)
    alone = [ClientRoom(seed.setting) for seed in seeds]
    together = [ClientRoom(replace(seed.setting, trainer=meeting)) for seed in seeds]
    times: list[tuple[float, float]] = []
    for number in range(rounds + 1):  # the first one warms up
        tasks = [seed.tasks(number) for seed in seeds]
        # what comes of training is copied to the CPU, which waits for the device
        one = timed(partial(_one_by_one, seeds, alone, tasks))
        times.append((one, timed(partial(_stacked, meeting, seeds, together, tasks))))
    assert not refused, refused
    serial, stacked = (round(statistics.median(column), 3) for column in zip(*times[1:], strict=True))
    ratio = statistics.median(a / b for a, b in times[1:])
    return {"serial": serial, "vectorized": stacked, "ratio": round(ratio, 2)}


def _one_by_one(seeds: Sequence[Seed], rooms: Sequence[ClientRoom], tasks: Sequence[Sequence[Task]]) -> None:
    for seed, room, mine in zip(seeds, rooms, tasks, strict=True):
        seed.aggregate([room.update(task, False) for task in mine])


def _stacked(
    meeting: Meeting, seeds: Sequence[Seed], rooms: Sequence[ClientRoom], tasks: Sequence[Sequence[Task]]
) -> None:
    def turn(number: int, task: Task) -> tuple[int, Reply]:
        return number, rooms[number].update(task, False)

    calls = [partial(turn, number, task) for number, mine in enumerate(tasks) for task in mine]
    replies = list(meeting.together(calls))
    for number, seed in enumerate(seeds):
        seed.aggregate([reply for other, reply in replies if other == number])


def _seed(profile: str, like: str, seed: int, device: str, quick: bool) -> Seed:
    values: dict[str, Any] = {"run.seed": seed, "run.device": device}
    if quick:
        values |= {"data.auxiliary": 100, "partition.min_train": 4, "train.epochs": 1}
    config = Config.profile(profile).with_values(values)
    experiment = Experiment(config, dataset=synthetic(like, 0.012 if quick else 1.0))
    [stage] = experiment.algorithm.stages(config.train.rounds)
    setting = experiment.setting(stage)
    return Seed(setting, setting.algorithm.init_server(setting.server(0)), config.train.participation)


def _device(name: str) -> str:
    return torch.cuda.get_device_name() if name == "cuda" else name


if __name__ == "__main__":
    main()
