"""A round on each engine beside the reference, for tiny and for ordinary models: `python -m benchmarks.engines`.

FedPer, 20 clients, ten a round, without tests, on random images. Each engine runs in a process of its own (with workers
of its own, as many as there are cores), a round of each in turn. What `run.engine = "auto"` picks rests on this table.
"""

import json
import statistics
from contextlib import ExitStack
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.common import Run, options, spread

ENGINES = ("serial", "threads", "processes", "wire", "vectorized")
MLP = {"model.name": "mlp", "model.hidden": [16]}
MODELS: dict[str, tuple[str, float, dict[str, Any]]] = {
    "mlp 784-16-10, batches of 8": ("mnist", 0.02, {**MLP, "train.batch": 8}),
    "mlp 784-16-10": ("mnist", 0.1, MLP),
    "cnn, 1x28x28": ("mnist", 0.1, {"model.name": "cnn"}),
    "cnn, 3x32x32": ("cifar10", 0.1, {"model.name": "cnn"}),
    "resnet8, 3x32x32": ("cifar10", 0.05, {"model.name": "resnet8"}),
}


def main() -> None:
    """Measures and prints."""
    turns = 5 if options(__doc__).quick else 15
    table = Table("model", "serial, s", *(f"{engine}, to serial" for engine in ENGINES[1:]))
    found = {}
    for model, (like, share, values) in MODELS.items():
        engines = [name for name in ENGINES if name != "vectorized" or "resnet" not in model]
        common = {"algorithm.name": "fedper", "data.auxiliary": 0, "partition.min_train": 10, "run.eval_every": 1000}
        with ExitStack() as stack:
            runs = {
                name: stack.enter_context(
                    Run({**common, **values, "train.rounds": turns + 1, "run.engine": name}, like=like, share=share)
                )
                for name in engines
            }
            said = [{name: run.round()["train"] for name, run in runs.items()} for _ in range(turns)][1:]
        ratios = {name: [turn[name] / turn["serial"] for turn in said] for name in engines[1:]}
        cells = [spread(ratios[name]) if name in ratios else "-" for name in ENGINES[1:]]
        table.add_row(model, f"{statistics.median(turn['serial'] for turn in said):.2f}", *cells)
        found[model] = {name: round(statistics.median(values), 3) for name, values in ratios.items()}
    Console().print(table)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
