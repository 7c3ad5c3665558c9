"""The tables of a report: final accuracy, paired differences between methods, and what a round costs."""

import math
from collections.abc import Iterable, Sequence
from importlib import import_module
from statistics import mean, median, stdev

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from manyheads.report.rows import Line, Metric, Row, Run, by_label

_WHOSE = {
    ("personal", "client test"): "personal models on their own client's test images",
    ("global", "client test"): "the global model on each client's test images",
    ("global", "global test"): "the global model on all test images",
}
_MOMENT = {"post_agg": "before local training", "post_adapt": "after adaptation to the client's own train images"}


def final_table(lines: Sequence[Line]) -> Table:
    """Accuracy, in per cent, of lines that share model, data and average, the highest first.

    With several seeds: mean ± standard deviation over seeds. The spread over clients is the mean over seeds.

    Args:
        lines: Lines of one group (see ``Key.group``), at least one.
    """
    model, data, average = lines[0].key.group
    seeds = len({seed for line in lines for seed in line.metrics}) > 1
    clients = data == "client test"
    # Over all test images there is one average only, and "micro" would say nothing to most readers.
    table = _table(f"{model} model, {data}" + (f", {average} average" if clients else ""))
    _columns(table, "method", "moment", "accuracy %", *(["seeds"] if seeds else []))
    if clients:
        _columns(table, "std over\nclients", "worst\ndecile", "clients", words=0)
    for line in sorted(lines, key=lambda line: -mean(line.accuracies.values())):
        moment = line.key.moment if line.done == line.planned else f"{line.key.moment}, {_round(line.done)}"
        cells = [line.short, moment, plus_minus(list(line.accuracies.values()))]
        cells += [str(len(line.metrics))] if seeds else []
        cells += [_percent(line, "std"), _percent(line, "worst_decile"), _clients(line)] if clients else []
        _row(table, cells)
    return table


def in_words(lines: Sequence[Line]) -> str:
    """Says in a sentence what the numbers of ``final_table(lines)`` are."""
    model, data, _ = lines[0].key.group
    sentence = f"{_when(lines)}: accuracy of {_WHOSE[model, data]}"
    if model == "personal":
        moments = [moment for moment in _MOMENT if any(line.key.moment == moment for line in lines)]
        sentence += ", " + " or ".join(f"{_MOMENT[moment]} ({moment})" for moment in moments)
    if data == "client test":
        sentence += f"; mean over {_who([metric for line in lines for metric in line.metrics.values()])}"
        sentence += "; worst decile: mean of the lowest tenth"
    if any(len(line.metrics) > 1 for line in lines):
        sentence += "; mean ± standard deviation over seeds"
    return sentence + "."


def difference_table(lines: Sequence[Line], first: str) -> Table | None:
    """Paired differences to the label ``first``, with a 95 % t interval; None where fewer than two seeds are in common.

    A line is compared with the line of ``first`` of the same moment, or with its post_agg line. Only lines that were
    measured after the same number of rounds are compared.

    Args:
        lines: Lines of one group (see ``Key.group``).
        first: The label to compare with.
    """
    table = _table("difference, percentage points, paired by seed")
    _columns(table, "method", "minus", "difference", "95 % interval", "seeds")
    for line in lines:
        other = _reference(line, lines, first)
        seeds = sorted(line.accuracies.keys() & other.accuracies.keys()) if other else []
        if other and len(seeds) > 1:
            center, low, high = paired_interval([line.accuracies[seed] - other.accuracies[seed] for seed in seeds])
            _row(table, [line.name, other.name, f"{center:+.2f}", f"{low:+.2f} to {high:+.2f}", str(len(seeds))])
    return table if table.row_count else None


def cost_table(runs: Iterable[Run]) -> Table | None:
    """What a round costs, medians over the rounds of all seeds: bytes a client and seconds. None before a round."""
    table = _table("cost of a round (medians)")
    _columns(table, "method", "up, a\nclient", "down, a\nclient", "train\ns", "aggregate\ns", "evaluate\ns", words=1)
    for label, group in by_label(runs).items():
        rows = [row for run in group for row in run.main]
        if rows:
            traffic = [traffic_median(rows, way) for way in ("up", "down")]
            seconds = [_seconds(rows, part) for part in ("train", "aggregate", "evaluate")]
            _row(table, [label, *traffic, *seconds])
    return table if table.row_count else None


def paired_interval(differences: Sequence[float]) -> tuple[float, float, float]:
    """Mean of paired differences with its 95 % t interval: (mean, low, high).

    Raises:
        ValueError: Fewer than two differences, which have no interval.
    """
    if len(differences) < 2:
        raise ValueError("an interval needs at least two differences")
    # Loaded by name: scipy comes with scikit-learn, has no types, and is slow to import.
    quantile = float(import_module("scipy.special").stdtrit(len(differences) - 1, 0.975))
    half = quantile * stdev(differences) / math.sqrt(len(differences))
    center = mean(differences)
    return center, center - half, center + half


def traffic_median(rows: Iterable[Row], way: str) -> str:
    """The median over clients and rounds of the bytes that went ``way`` (``"up"`` or ``"down"``)."""
    sent = [row["bytes"][way] for row in rows if way in row.get("bytes", {})]
    if not sent:
        return "-"
    return size(median([count for clients in sent for count in clients.values()] or [0]))


def size(count: float) -> str:
    """A number of bytes for people, in decimal units.

    >>> size(2307900)
    '2.31 MB'
    """
    for unit in ("B", "kB", "MB"):
        if count < 999.5:
            return f"{count:.0f} B" if unit == "B" else f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"


def plus_minus(values: Sequence[float]) -> str:
    """Mean ± standard deviation, or the value alone.

    >>> plus_minus([90.0, 92.0])
    '91.00 ± 1.41'
    """
    return f"{mean(values):.2f} ± {stdev(values):.2f}" if len(values) > 1 else f"{values[0]:.2f}"


def _reference(line: Line, lines: Sequence[Line], first: str) -> Line | None:
    comparable = [other for other in lines if other.label == first != line.label and other.done == line.done]
    for moment in (line.key.moment, "post_agg"):
        for other in comparable:
            if other.key.moment == moment:
                return other
    return None


def _who(metrics: Sequence[Metric]) -> str:
    counts = sorted({metric["clients"] for metric in metrics if "clients" in metric})
    words = f"{' or '.join(map(str, counts))} client{'s' * (counts != [1])}".strip()
    left = max(metric.get("left_out", 0) for metric in metrics)
    words += f" ({left} without test images left out)" if left else ""
    whole = max(metric.get("of", 0) for metric in metrics)
    sampled = whole > max(metric.get("clients", 0) + metric.get("left_out", 0) for metric in metrics)
    return words + (f", a fixed sample of the {whole}" if sampled else "")


def _when(lines: Sequence[Line]) -> str:
    done = {(line.done, line.planned) for line in lines}
    if len(done) == 1:
        (rounds, planned), *_ = done
        return f"{'Last' if rounds == planned else 'Latest evaluated'} round ({rounds} of {planned})"
    return f"Last round ({max(line.planned for line in lines)}) or the one named"


def _round(done: int) -> str:
    return f"round {done}" if done else "untrained"


def _clients(line: Line) -> str:
    counts = sorted({metric["clients"] for metric in line.metrics.values() if "clients" in metric})
    return " or ".join(map(str, counts)) or "-"


def _percent(line: Line, name: str) -> str:
    values = [100 * float(metric[name]) for metric in line.metrics.values() if metric.get(name) is not None]
    return f"{mean(values):.2f}" if values else "-"


def _seconds(rows: Iterable[Row], part: str) -> str:
    values = [float(row["seconds"][part]) for row in rows if part in row.get("seconds", {})]
    return f"{median(values):.3g}" if values else "-"


def _table(title: str) -> Table:
    return Table(
        title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0)
    )


def _columns(table: Table, *names: str, words: int = 2) -> None:
    for place, name in enumerate(names):
        # Only names may wrap: a number broken over two lines is a wrong number.
        number = place >= words
        table.add_column(name, justify="right" if number else "left", no_wrap=number or name == "moment")


def _row(table: Table, cells: Iterable[str]) -> None:
    # Text, not str: names may hold square brackets, which rich would take for markup.
    table.add_row(*(Text(cell) for cell in cells))
