"""Resident memory over the rounds of a run, at 20 and at 10,000 clients: `python -m benchmarks.memory`.

FedPer on images like MNIST's, iid, ten clients of 20 or 50 of 10,000 a round, each run in a fresh process and stored.
The process says after every round what it holds, and the most that it held in the round. The second half of the
rounds is compared with the first: beside medians stand the largest peaks. A factor of 1.02 is still flat.

With `--quick`, 100 rounds of 20 clients with 100 images each are run, tested every tenth round, and 20 of 10,000.
"""

import json
import statistics
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.common import Run, options

COMMON: dict[str, Any] = {
    "partition.kind": "iid",
    "partition.min_train": 1,
    "model.name": "cnn",
    "train.epochs": 1,
    "algorithm.name": "fedper",
}


def main() -> None:
    """Measures and prints."""
    args = options(__doc__)
    few: dict[str, Any] = {"train.rounds": 200, "partition.clients": 20, "train.participation": 0.5}
    many: dict[str, Any] = {"train.rounds": 50, "partition.clients": 10_000, "train.participation": 0.005}
    if args.quick:
        few |= {"train.rounds": 100, "data.auxiliary": 58_000, "run.eval_every": 10}
        many |= {"train.rounds": 20}
    table = Table("clients", "rounds", "rss, MiB", "peak, MiB", "rss, 2nd / 1st half", "peak, 2nd / 1st half")
    found = {}
    for values in (few, many):
        with Run({**COMMON, **values}, data_dir=args.data_dir) as run:
            said = [run.round() for _ in range(values["train.rounds"])]
        half = len(said) // 2
        resident, peaks = [line["rss"] for line in said], [line["peak"] for line in said]
        ratios = {
            "rss": round(statistics.median(resident[half:]) / statistics.median(resident[:half]), 4),
            "peak": round(max(peaks[half:]) / max(peaks[:half]), 4),
        }
        found[str(values["partition.clients"])] = ratios
        numbers = (f"{statistics.median(resident):.0f}", f"{max(peaks):.0f}", *map(str, ratios.values()))
        table.add_row(f"{values['partition.clients']:,}", str(len(said)), *numbers)
    Console().print(table)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
