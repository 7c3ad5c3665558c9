"""Reads run folders and picks the headline numbers out of their rows.

A run folder holds ``config.toml`` and ``rounds.jsonl``. A comparison folder holds ``comparison.toml``, which names its
runs, and one run folder for each of them.

Rounds are counted here as people count them: 0 is the evaluation before training, ``n`` the state after ``n`` rounds.
"""

import json
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from manyheads.errors import InputError
from manyheads.plan import FILE, Plan
from manyheads.storage.log import read_rows

Row = Mapping[str, Any]
Metric = Mapping[str, Any]


class RunEntry(NamedTuple):
    """Where a run lies and what it is called."""

    label: str
    method: str
    seed: int
    path: Path


class Key(NamedTuple):
    """Everything that has to be said about an accuracy: which model, on which data, when, averaged how."""

    model: str
    data: str
    moment: str
    average: str
    variant: str = ""

    @property
    def local(self) -> bool:
        """Whether the model is as its local training left it; all others come after the aggregation."""
        return self.moment == "post_local"

    @property
    def group(self) -> tuple[str, str, bool]:
        """Numbers of one group may stand under each other: (data, average, after local training)."""
        return self.data, self.average, self.local


DATA = ("client test", "global test")
MODELS = ("personal", "global")
MOMENTS = ("post_agg", "post_adapt", "post_local")
PRIOR = "prior"  # the variant of a global model to whose logits a client's log class shares are added


@dataclass(frozen=True)
class Run:
    """A run and its rows.

    Attributes:
        entry: Label, method, seed and folder.
        rows: The lines of ``rounds.jsonl``.
        config: The resolved configuration, as plain TOML values; may be empty for rows that come from memory.
    """

    entry: RunEntry
    rows: Sequence[Row]
    config: Mapping[str, Any]

    @property
    def main(self) -> list[Row]:
        """The rows of the training rounds, without the evaluation before them and without earlier stages."""
        return [row for row in self.rows if row["round"] >= 0]

    @property
    def done(self) -> int:
        """How many rounds are finished."""
        return max((row["round"] + 1 for row in self.main), default=0)

    @property
    def planned(self) -> int:
        """How many rounds the configuration asks for."""
        return int(self.config.get("train", {}).get("rounds", self.done))

    @cached_property
    def headline(self) -> dict[Key, dict[int, Metric]]:
        """The headline numbers: for each key, finished rounds to the metric measured then."""
        found: dict[Key, dict[int, Metric]] = {}
        for row in self.rows:
            if row["round"] < 0 and "stage" in row:
                continue
            for key, metric in headlines(row).items():
                found.setdefault(key, {})[row["round"] + 1] = metric
        return found


@dataclass(frozen=True)
class Line:
    """One number of the final table, over the seeds that got furthest.

    Attributes:
        label: The run's label.
        method: The run's method.
        key: Which number it is.
        done: The rounds after which it was measured.
        planned: The rounds that the configuration asks for.
        metrics: Seed to metric, without seeds that stopped earlier: numbers of other rounds must not be averaged.
    """

    label: str
    method: str
    key: Key
    done: int
    planned: int
    metrics: Mapping[int, Metric]

    @property
    def accuracies(self) -> dict[int, float]:
        """Seed to accuracy in per cent."""
        return {seed: 100 * float(metric["accuracy"]) for seed, metric in self.metrics.items()}


def is_headline(key: Key) -> bool:
    """Whether a number belongs in the final tables: over clients the macro average, global models as aggregated."""
    if key.data == "global test":
        return key.model == "global" and key.moment == "post_agg"
    moments = MOMENTS if key.model == "personal" else MOMENTS[:1]
    return key.data == "client test" and key.average == "macro" and key.moment in moments


def headlines(row: Row) -> dict[Key, Metric]:
    """The headline numbers of a row, the most important one first."""
    found = {Key(*(metric.get(name, "") for name in Key._fields)): metric for metric in row.get("metrics", ())}
    return {key: found[key] for key in sorted(filter(is_headline, found), key=order) if "accuracy" in found[key]}


def is_teacher(method: str, key: Key) -> bool:
    """Whether a number is no answer of its method: pFedKDH's global model only teaches the personal ones."""
    return method == "pfedkdh" and (key.model == "global" or key.variant == PRIOR)


def order(key: Key) -> tuple[int, str, bool, bool, int, str, int]:
    """Sorts keys: clients' images first, personal before global, plain before variants, adapted models last.

    A control, a global model with a client's prior, comes behind the answers of its method.
    """
    return (
        *(DATA.index(key.data), key.average, key.local, key.variant == PRIOR),
        MODELS.index(key.model),
        key.variant,
        MOMENTS.index(key.moment),
    )


def line_name(label: str, method: str, key: Key, full: bool = True) -> str:
    """The name of a number: the label with its variant and, in ``full``, what sets it apart from other lines.

    That is "global" among the personal models, and "post_adapt". pFedKDH has names of its own for its numbers, which
    are used in either case: Fair and EA, from its paper, and teacher.
    """
    parts = [key.variant]
    if is_teacher(method, key):
        parts.insert(0, "teacher")
    elif method == "pfedkdh" and not key.local:
        parts.append({"post_agg": "Fair", "post_adapt": "EA"}[key.moment])
    elif full:
        parts.append("global" if (key.model, key.data) == ("global", "client test") else "")
        parts.append(key.moment if key.moment == "post_adapt" else "")
    extra = ", ".join(part for part in parts if part)
    return f"{label} ({extra})" if extra else label


def by_label(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """Groups the seeds of a label, in order of appearance."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(run.entry.label, []).append(run)
    return groups


def final_lines(runs: Iterable[Run]) -> list[Line]:
    """The last value, never the best one, of every headline number of every label."""
    lines = []
    for label, group in by_label(runs).items():
        for key in sorted({key for run in group for key in run.headline}, key=order):
            series = {run.entry.seed: run.headline[key] for run in group if key in run.headline}
            done = max(max(rounds) for rounds in series.values())
            metrics = {seed: rounds[done] for seed, rounds in series.items() if done in rounds}
            lines.append(Line(label, group[0].entry.method, key, done, group[0].planned, metrics))
    return lines


def runs_of(folder: Path) -> list[RunEntry]:
    """The runs in a run folder (one) or a comparison folder: label, method, seed, path.

    Runs come in the order of ``comparison.toml``, others after them by name, the seeds of a label together.

    Raises:
        InputError: The folder is missing, holds neither kind of thing, or a ``.toml`` file in it cannot be read.
    """
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder")
    if (folder / "config.toml").exists():
        return [_entry(folder, None)]
    plan = plan_of(folder)
    if plan is None:
        inside = sorted(path.parent for name in ("config.toml", FILE) for path in folder.glob(f"*/{name}"))
        hint = f"; did you mean {inside[0]}?" if inside else ""
        raise InputError(f"{folder}: neither a run (no config.toml) nor a comparison (no {FILE}){hint}")
    labels = {entry.folder: entry.variant.label for entry in plan.entries()}
    rank = {variant.label: place for place, variant in enumerate(plan.variants)}
    paths = [path.parent for path in folder.glob("*/config.toml")]
    entries = [_entry(path, labels.get(path.name, re.sub(r"-seed\d+$", "", path.name))) for path in paths]
    return sorted(entries, key=lambda entry: (rank.get(entry.label, len(rank)), entry.label, entry.seed))


def plan_of(folder: Path) -> Plan | None:
    """The plan of a comparison folder, None for any other one. Raises InputError where it cannot be read."""
    return Plan.read(folder) if (folder / FILE).exists() else None


def not_started(folder: Path, runs: Iterable[Run]) -> list[str]:
    """Runs without a row: those that ``comparison.toml`` names and those of the folder, in words."""
    plan = plan_of(folder)
    if plan is None:
        return []
    wanted = [(variant.label, seed) for variant in plan.variants for seed in plan.seeds]
    wanted += [(entry.label, entry.seed) for entry in runs_of(folder)]
    present = {(run.entry.label, run.entry.seed) for run in runs}
    return [f"{label}, seed {seed}" for label, seed in dict.fromkeys(wanted) if (label, seed) not in present]


def load_runs(folder: Path) -> list[Run]:
    """The runs in a folder that have at least one row.

    Raises:
        InputError: No run in the folder has one, or a file cannot be read.
    """
    entries = runs_of(folder)
    runs = [Run(entry, read_rows(entry.path / "rounds.jsonl"), read_config(entry.path)) for entry in entries]
    runs = [run for run in runs if run.rows]
    if not runs:
        missing = entries[0].path if entries else folder / "<run>"
        raise InputError(f"{folder}: nothing to show yet, no row in {missing / 'rounds.jsonl'}")
    return runs


def read_toml(file: Path) -> dict[str, Any]:
    """A TOML file as plain values.

    Raises:
        InputError: The file is missing or is not TOML.
    """
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{file}: cannot be read ({error})") from error


def read_config(path: Path) -> dict[str, Any]:
    """A run's ``config.toml``, with the names of what the run was given in place of it: own data, model or method."""
    config = read_toml(path / "config.toml")
    try:
        data = json.loads((path / "data.json").read_bytes())
        own = {"data": ("source", data["name"]), **{k: ("name", v) for k, v in data.get("own", {}).items()}}
        for section, (key, value) in own.items():
            config[section][key] = value
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return config  # what is missing or damaged is reported by those who need it
    return config


def _entry(path: Path, label: str | None) -> RunEntry:
    config = read_config(path)
    try:
        method, seed = str(config["algorithm"]["name"]), int(config["run"]["seed"])
        for section, key in (("data", "source"), ("partition", "kind"), ("partition", "clients"), ("model", "name")):
            config[section][key]  # for the titles
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path / 'config.toml'}: no config of a run ({error!r})") from error
    return RunEntry(label or method, method, seed, path)
