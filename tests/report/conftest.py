import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from manyheads.plan import FILE, Plan, variants


def metric(model: str, data: str, accuracy: float, moment: str = "post_agg", **more: float | str) -> dict[str, Any]:
    found: dict[str, Any] = {"model": model, "variant": "", "data": data, "moment": moment, "accuracy": accuracy}
    if data == "client test":
        found |= {"average": "macro", "clients": 20, "left_out": 0, "std": 0.1, "worst_decile": accuracy - 0.2}
    else:
        found["average"] = "micro"
    return found | more


def personal(accuracy: float, moment: str = "post_agg", **more: float | str) -> dict[str, Any]:
    return metric("personal", "client test", accuracy, moment, **more)


def global_test(accuracy: float) -> dict[str, Any]:
    return metric("global", "global test", accuracy)


def row(
    finished: int, *metrics: dict[str, Any], up: int = 1000, down: int = 2000, train: float = 0.5
) -> dict[str, Any]:
    """The row after ``finished`` rounds; 0 is the evaluation before training."""
    return {
        "round": finished - 1,
        "cohort": [0, 3] if finished else [],
        "loss": {"ce": 0.4},
        "bytes": {"up": {"0": up, "3": up + 200}, "down": {"0": down, "3": down}}
        if finished
        else {"up": {}, "down": {}},
        "seconds": {"train": train, "aggregate": 0.01, "evaluate": 0.25},
        "metrics": list(metrics),
    }


def write_run(
    path: Path,
    rows: Sequence[dict[str, Any]],
    method: str = "fedavg",
    seed: int = 0,
    rounds: int = 3,
    counts: Sequence[Sequence[int]] = ((5, 0), (3, 4)),
) -> Path:
    path.mkdir(parents=True)
    classes = len(counts[0])
    config = f"""
[data]
source = "digits"
[partition]
kind = "dirichlet"
clients = {len(counts)}
alpha = 0.1
[model]
name = "mlp"
[train]
rounds = {rounds}
[algorithm]
name = "{method}"
[run]
seed = {seed}
"""
    (path / "config.toml").write_text(config)
    (path / "rounds.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = {
        "name": "digits",
        "classes": [f"class {place}" for place in range(classes)],
        "counts": [list(map(int, of_client)) for of_client in counts],
        "auxiliary": [2] * classes,
    }
    (path / "data.json").write_text(json.dumps(data))
    return path


def write_comparison(
    folder: Path, labels: Sequence[str], seeds: Sequence[int] = (0,), minus: Mapping[str, str] | None = None
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    plan = Plan(seeds=list(seeds), variants=variants({label: {} for label in labels}, minus))
    (folder / FILE).write_text(plan.to_toml())
    return folder


@pytest.fixture
def fake() -> SimpleNamespace:
    """Rows and folders as a run leaves them."""
    return SimpleNamespace(
        metric=metric, personal=personal, global_test=global_test, row=row, run=write_run, comparison=write_comparison
    )
