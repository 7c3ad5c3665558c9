"""A round's time and peak memory at 100, 1,000 and 10,000 clients: `python -m benchmarks.scale`.

FedPer on images like MNIST's, 50 clients a round. Every client has five train images and one test image, however many
clients there are, and the whole data set is in memory each time: so only the number of clients differs. The three runs
are stored, each in a process of its own, and go round by round in turn. Rounds are measured without tests. Beside them
stands the time that a test takes: of all clients, or of the fixed sample of 1,000 where there are more.
"""

import json
import statistics
from collections.abc import Mapping
from contextlib import ExitStack

from rich.console import Console
from rich.table import Table

from benchmarks.common import Run, options, spread
from benchmarks.memory import COMMON

CLIENTS, COHORT, EACH = (100, 1_000, 10_000), 50, (5, 1)
EVERY = 5  # rounds between tests


def main() -> None:
    """Measures and prints."""
    args = options(__doc__)
    rounds = 10 if args.quick else 100
    with ExitStack() as stack:
        runs = {}
        for clients in CLIENTS:
            values = {
                "train.rounds": rounds,
                "partition.clients": clients,
                "train.participation": COHORT / clients,
                "run.eval_every": EVERY,
            }
            runs[clients] = stack.enter_context(Run({**COMMON, **values}, data_dir=args.data_dir, each=EACH))
        turns = [{clients: run.round() for clients, run in runs.items()} for _ in range(rounds)]
    bare = [turn for number, turn in enumerate(turns) if (number + 1) % EVERY and number]
    tested = turns[EVERY - 1 :: EVERY]
    table = Table(
        "clients", "round, s", "of it storing, s", "to 100 clients'", "peak, MiB", "to 100 clients'", "test, s"
    )
    found = {}
    for clients in CLIENTS:
        times = [turn[clients]["wall"] / turn[CLIENTS[0]]["wall"] for turn in bare]
        most = {n: max(turn[n]["peak"] for turn in bare) for n in (clients, CLIENTS[0])}
        seconds = statistics.median(turn[clients]["wall"] for turn in bare)
        testing = statistics.median(turn[clients]["evaluate"] for turn in tested)
        memory = most[clients] / most[CLIENTS[0]]
        storing = statistics.median(_storing(turn[clients]) for turn in bare)
        numbers = (
            f"{seconds:.2f}",
            f"{storing:.2f}",
            spread(times),
            f"{most[clients]:.0f}",
            f"{memory:.3f}",
            f"{testing:.2f}",
        )
        table.add_row(f"{clients:,}", *numbers)
        found[str(clients)] = {"time": round(statistics.median(times), 3), "peak": round(memory, 3)}
    Console().print(table)
    print(json.dumps(found))


def _storing(said: Mapping[str, float]) -> float:
    return said["wall"] - said["train"] - said["aggregate"] - said["evaluate"]


if __name__ == "__main__":
    main()
