"""What a round of each method costs beside FedPer's, and what testing costs: `python -m benchmarks.cost`.

Rounds are updates and aggregation, without tests, on random images in the shape and number of CIFAR-10 and MNIST, with
the settings of pFedKDH's paper (profiles `kdh-cifar10` and `kdh-mnist`: 3 and 2 local epochs, |D_s| = 5,000). Each
method runs in a process beside FedPer's, a round of one and a round of the other in turn, on the same cohorts.
pFedKDH's variant EA adapts the heads of all 20 clients after every round: its cost is the time that testing takes
longer with it. So both of its variants are tested, in turn with FedPer, and the tests are left out. The paper reports
1.57 on CIFAR-10 and 1.68 on MNIST. Beside wall time, which other work on the machine disturbs, stands processor time.

Then all personal models of FedPer's 20 clients are tested, which share a backbone, and one model on the whole test set,
both on one thread and in turn.

With `--quick` there is a tenth of the images, of |D_s| and of EA's steps, and fewer methods. Methods may be named:
`python -m benchmarks.cost pfedkdh` takes a quarter of an hour.
"""

import json
import statistics
from collections.abc import Mapping
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.common import Run, options, spread, synthetic, timed
from manyheads.algorithms import registry
from manyheads.config import Config
from manyheads.contract import Broadcast, Predictor, PrivateState, Tree
from manyheads.engines import one_thread
from manyheads.engines.serial import Serial
from manyheads.experiment import Experiment
from manyheads.local.client import Task

QUICK = ("fedavg", "fedprox", "fedrep", "fedecouple", "pfedkdh")
NEVER = 1000  # rounds


def main() -> None:
    """Measures and prints."""
    every = tuple(name for name in registry.names() if name != "fedper")
    args = options(__doc__, every)
    share, turns = (0.1, 6) if args.quick else (1.0, 12 if args.methods else 8)
    methods = args.methods or (QUICK if args.quick else every)
    found: dict[str, Any] = {}
    for like in ("cifar10", "mnist"):
        table = Table(f"like {like}", "a round, s", "to FedPer's", "processor time, to FedPer's")
        found[like] = {}
        for name in methods:
            for label, pairs in beside_fedper(name, like, share, turns).items():
                ratios = [[mine / theirs for mine, theirs in zip(*pair, strict=True)] for pair in pairs]
                wall, cpu = zip(*ratios, strict=True)
                found[like][label] = {
                    "wall": round(statistics.median(wall), 3),
                    "cpu": round(statistics.median(cpu), 3),
                }
                seconds = statistics.median(own[0] for own, _ in pairs)
                table.add_row(label, f"{seconds:.2f}", spread(wall), spread(cpu))
        Console().print(table)
    shared = [test_ratio(turn, 0.3 if args.quick else 1.0) for turn in range(8)][1:]
    Console().print(f"testing 20 personal models that share a backbone, to one global model: {spread(shared)}")
    print(json.dumps({**found, "testing": round(statistics.median(shared), 3)}))


Spent = tuple[float, float]
"""Wall and processor seconds of a round."""


def beside_fedper(name: str, like: str, share: float, turns: int) -> dict[str, list[tuple[Spent, Spent]]]:
    """What rounds of a method and of FedPer took, in pairs, by label; pFedKDH has a second one, with EA."""
    values = {
        "train.rounds": turns + 1,  # the last one, which is always tested, is not asked for
        "data.auxiliary": int(5000 * share),
        "partition.min_train": 10,
        "run.eval_every": NEVER,
        "algorithm.name": name,
    }

    def run(**changed: Any) -> Run:
        wanted = values | {key.replace("__", "."): value for key, value in changed.items()}
        return Run(wanted, profile=f"kdh-{like}", like=like, share=share)

    if name != "pfedkdh":
        with run(algorithm__name="fedper") as base, run() as own:
            return {name: [(_spent(own.round()), _spent(base.round())) for _ in range(turns)][1:]}
    tested = {"run__eval_every": 1, "algorithm__adapt_steps": max(1, round(10 * share))}
    with (
        run(algorithm__name="fedper") as base,
        run(run__adapt_every=NEVER, **tested) as fair,
        run(run__adapt_every=1, **tested) as adapting,
    ):
        said = [(base.round(), fair.round(), adapting.round()) for _ in range(turns)][1:]
    return {
        name: [(_spent(plain), _spent(theirs)) for theirs, plain, _ in said],
        "pfedkdh with EA": [(_with_ea(plain, ea), _spent(theirs)) for theirs, plain, ea in said],
    }


def _spent(said: Mapping[str, float]) -> Spent:
    """A round without its test."""
    return _piece(said, said["train"] + said["aggregate"])


def _with_ea(plain: Mapping[str, float], ea: Mapping[str, float]) -> Spent:
    """A round that was tested, with what its test takes longer where it adapts."""
    spent, short, long = _spent(plain), _piece(plain, plain["evaluate"]), _piece(ea, ea["evaluate"])
    return spent[0] + long[0] - short[0], spent[1] + long[1] - short[1]


def _piece(said: Mapping[str, float], wall: float) -> Spent:
    """Of a round, so many seconds and as large a share of its processor time."""
    return wall, said["cpu"] * wall / said["wall"]


def test_ratio(turn: int, share: float) -> float:
    """Seconds for the personal models over seconds for a global one, of the same weights in each turn."""
    config = Config.profile("kdh-mnist").with_values({"algorithm.name": "fedper", "partition.min_train": 10})
    experiment = Experiment(config, dataset=synthetic("mnist", share))
    (stage,) = experiment.algorithm.stages(1)
    rng = torch.Generator().manual_seed(turn)

    def noisy(tree: Tree) -> Tree:
        return tree.map(lambda t: t + 0.01 * torch.randn(t.shape, generator=rng))

    with one_thread():
        setting, again = experiment.setting(stage), experiment.setting(stage)
        initial = setting.network.initial
        received = Broadcast(model=noisy(Tree({n: t for n, t in initial.items() if n.startswith("backbone.")})))
        heads = Tree({n: t for n, t in initial.items() if n.startswith("head.")})
        clients = range(experiment.federation.clients)
        tasks = [Task(client, 0, received, PrivateState(model=noisy(heads))) for client in clients]
        tester, whole = again.tester(), Predictor(received.model | heads, stage.algorithm.logits)

        def one() -> None:
            tester.right(whole, torch.arange(tester.size))

        def all_personal() -> None:
            with Serial(setting) as engine:
                list(engine.evaluate(tasks, False))

        both = (one, all_personal)
        seconds = {test: timed(test) for test in (both if turn % 2 else both[::-1])}  # the first one may pay more
        return seconds[all_personal] / seconds[one]


if __name__ == "__main__":
    main()
