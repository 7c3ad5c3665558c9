"""What ``manyheads show`` prints and draws for the folder of a run or of a comparison."""

import json
import shlex
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from manyheads.errors import InputError
from manyheads.report.rows import Run, by_label, final_lines, load_runs, not_started, order, plan_of
from manyheads.report.tables import cost_table, difference_table, final_table, in_words, traffic_median


def show(folder: Path, console: Console) -> None:
    """Prints the final tables of a run folder or a comparison folder, and says what is missing in it.

    Raises:
        InputError: There is no row to show, or a file cannot be read.
    """
    runs = load_runs(folder)
    lines = final_lines(runs)
    plan = plan_of(folder)
    minus = plan.minus if plan else {}
    to_first = {line.label: lines[0].label for line in lines}
    _say(console, describe(runs), style="bold")
    for _, group in groupby(sorted(lines, key=lambda line: order(line.key)), key=lambda line: line.key.group):
        same = list(group)
        _show(console, final_table(same, ranked=not minus))
        _say(console, in_words(same), style="dim")
        _show(console, difference_table(same, minus or to_first, least=1 if minus else 2))
    _show(console, cost_table(runs))
    for said, style in ((noted(runs[0]) if len(runs) == 1 else [], None), (notes(folder, runs), "yellow")):
        if said:
            console.print()
        for line in said:
            _say(console, line, style)


def describe(runs: Sequence[Run]) -> str:
    """The experiment in a line: data, partition, model, seeds, and the methods where the runs' labels are others.

    Args:
        runs: At least one, of one experiment.
    """
    seeds = sorted({run.entry.seed for run in runs})
    config = runs[0].config
    methods = {run.entry.method for run in runs}
    named = f"{', '.join(sorted(methods))}; " if methods - {run.entry.label for run in runs} else ""
    said = f"{named}{_data_of(config)}; model {config['model']['name']}"
    return f"{said}; seed{'s' * (len(seeds) > 1)} {str(seeds)[1:-1]}"


def noted(run: Run) -> list[str]:
    """What the method noted of each client in the last round, such as its weight: smallest, median and largest."""
    said = []
    for row in [row for row in run.main if row.get("notes")][-1:]:
        for name, of_clients in row["notes"].items():
            low, middle, high = (f"{of(of_clients.values()):.4g}" for of in (min, median, max))
            who = f"{len(of_clients)} client{'s' * (len(of_clients) != 1)}"
            said.append(
                f"{name} in round {row['round'] + 1}: {low} to {high}, median {middle}, over {who}; "
                'all rounds and clients: rounds.jsonl, "notes"'
            )
    return said


def notes(folder: Path, runs: Sequence[Run]) -> list[str]:
    """What a reader of the tables has to know besides: what is not finished, was left out, or stands in no table."""
    said: list[str] = []
    for run in runs:
        if run.done < run.planned:
            where = f"after round {run.done}" if run.done else "before round 1"
            said.append(f"{run.entry.label}, seed {run.entry.seed}: stopped {where} of {run.planned}")
    said += [f"{run}: not started" for run in not_started(folder, runs)]
    if said:
        said.append(f"go on with: manyheads resume {shlex.quote(str(folder))}")
    for run in runs:
        dropped = [int(client) for row in run.rows for client in row.get("dropped", {})]
        if dropped:
            who = ", ".join(map(str, sorted(set(dropped))))
            said.append(f"{run.entry.label}, seed {run.entry.seed}: {len(dropped)} uploads left out, of clients {who}")
    said += [f"{run.entry.label}, seed {run.entry.seed}: {away}" for run in runs if (away := absent(run))]
    for label, group in by_label(runs).items():
        early = [row for row in group[0].rows if row["round"] < 0 and row.get("cohort")]
        if early:
            traffic = f"each {traffic_median(early, 'up')} up and {traffic_median(early, 'down')} down a client"
            said.append(f"{label}: {len(early)} rounds of an earlier stage come on top, {traffic}")
    return said


def absent(run: Run) -> str:
    """Who did not answer, or not in full, where a run simulated reality, in a line; else ""."""
    rows = [row for row in run.rows if "reality" in row]
    count = {kind: sum(len(row["reality"][kind]) for row in rows) for kind in ("dropped", "late", "partial")}
    asked, seconds = sum(len(row["cohort"]) for row in rows), sum(row["reality"]["seconds"] for row in rows)
    said = f"{asked} turns of clients: {count['dropped']} dropped, {count['late']} late, {count['partial']} with fewer"
    return f"{said} epochs; {seconds:.4g} virtual seconds" if rows else ""


def pictures(folder: Path) -> list[Path]:
    """Draws ``curves.png`` and ``partition.png`` into a run folder or a comparison folder.

    The partition is that of the first run: all methods of a seed share it.

    Returns:
        The two files.

    Raises:
        InputError: There is nothing to draw, or ``data.json`` is missing or damaged.
    """
    runs = load_runs(folder)
    first = min(runs, key=lambda run: run.entry.seed)
    data = _data(first.entry.path / "data.json")
    # Imported here: the tables alone should not wait for matplotlib.
    import numpy as np

    from manyheads.report.curves import plot_runs
    from manyheads.report.partition import plot_counts

    counts, auxiliary = (np.asarray(data[name], dtype=np.int64) for name in ("counts", "auxiliary"))
    description = f"{_data_of(first.config)}; seed {first.entry.seed}"
    files = [folder / "curves.png", folder / "partition.png"]
    try:
        plot_runs(runs, files[0], describe(runs))
        plot_counts(counts, auxiliary, data["classes"], description, files[1])
    except OSError as error:
        raise InputError(f"{folder}: cannot be written ({error})") from error
    return files


def _data(file: Path) -> dict[str, Any]:
    try:
        data: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        classes = len(data["classes"])
        fits = all(len(row) == classes for row in (data["auxiliary"], *data["counts"])) and data["counts"]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise InputError(f"{file}: cannot be read ({error!r})") from error
    if not fits:
        raise InputError(f"{file}: needs one count a class ({classes}) for each client and for the auxiliary set")
    return data


def _data_of(config: Mapping[str, Any]) -> str:
    partition = dict(config["partition"])
    kind, clients = partition.pop("kind"), partition.pop("clients")
    options = ", ".join(f"{name}={value}" for name, value in partition.items() if name != "min_train")
    return f"{config['data']['source']}; {kind}({options}), {clients} client{'s' * (clients != 1)}"


def _show(console: Console, table: Table | None) -> None:
    if table is not None:
        console.print()
        width = console.width
        console.width = max(width, 80)  # the terminal wraps lines, rich would cut numbers
        console.print(table, crop=False)
        console.width = width


def _say(console: Console, text: str, style: str | None = None) -> None:
    # Plain text in one piece: a command to copy must not be broken, and brackets in names are no markup.
    console.print(text, style=style, highlight=False, markup=False, soft_wrap="manyheads resume" in text)
