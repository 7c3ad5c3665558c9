"""The tables of a report: final accuracy, paired differences between methods, and what a round costs."""

import math
from collections.abc import Iterable, Sequence
from importlib import import_module
from statistics import mean, median, stdev

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from manyheads.report.rows import Line, Metric, Row, Run, by_label, order

_DATA = {
    "client test": ("clients' own test images", "each client's own test images"),
    "global test": ("all test images", "all test images together"),
}
_MOMENT = {"post_agg": "before local training", "post_adapt": "after adaptation to the client's own train images"}


def final_table(lines: Sequence[Line]) -> Table:
    """Accuracy, in per cent, of lines that share data and average, the highest first.

    With several seeds: mean ± standard deviation over seeds. The spread over clients is the mean over seeds. What is
    the same in all rows stands in the sentence below, not in a column.

    Args:
        lines: Lines of one group (see ``Key.group``), at least one.
    """
    data, average = lines[0].key.group
    clients = data == "client test"
    rounds, seeds = not _same_round(lines), len({len(line.metrics) for line in lines}) > 1
    table = _table(f"{_DATA[data][0]}, {average} average")
    _columns(table, "method", "model", "moment", "accuracy %", *["round"] * rounds, *["seeds"] * seeds, words=3)
    _columns(table, *["client\nstd", "worst\ndecile"] * clients, words=0)
    for line in sorted(lines, key=lambda line: -mean(line.accuracies.values())):
        cells = [line.short, line.key.model, line.key.moment, plus_minus(list(line.accuracies.values()))]
        cells += [str(line.done)] * rounds + [str(len(line.metrics))] * seeds
        cells += [_percent(line, "std"), _percent(line, "worst_decile")] * clients
        _row(table, cells, style="dim" if line.teacher else "")
    return table


def in_words(lines: Sequence[Line]) -> str:
    """Says in words what the numbers of ``final_table(lines)`` are."""
    data, average = lines[0].key.group
    said = f"{_when(lines)}: accuracy on {_DATA[data][1]} ({data}), "
    if data == "client test":
        said += f"mean over {_who([metric for line in lines for metric in line.metrics.values()])}, every client alike "
        said += f"({average} average); client std: standard deviation over clients; worst decile: mean of the lowest "
        said += "tenth"
    else:
        said += f"every image alike ({average} average)"
    seeds = sorted({len(line.metrics) for line in lines})
    if seeds[-1] > 1:
        said += f"; mean ± standard deviation over {f'{seeds[0]} ' * (len(seeds) == 1)}seeds"
    personal = {line.key.moment for line in lines if line.key.model == "personal"}
    moments = [f"{words} ({name})" for name, words in _MOMENT.items() if name in personal]
    if moments:
        said += ". Personal: the client's own model, " + " or ".join(moments)
    if any(line.key.model == "global" for line in lines):
        said += ". Global: the one model of all clients, as aggregated (post_agg)"
    if any(line.teacher for line in lines):
        said += ". Teacher: pFedKDH's global model, a diagnostic: clients learn from it, but answer with their own"
    return said + "."


def difference_table(lines: Sequence[Line], first: str) -> Table | None:
    """Paired differences to the label ``first``, with a 95 % t interval; None where fewer than two seeds are in common.

    A line is compared with the line of ``first`` of the same moment, or with its post_agg line; with that of its
    personal models, or else with that of its global model. Only lines that were measured after the same number of
    rounds are compared.

    Args:
        lines: Lines of one group (see ``Key.group``).
        first: The label to compare with.
    """
    title = "difference, percentage points, paired by seed"
    if any(line.key.model == "personal" for line in lines):
        title += "\n(personal models before local training, unless named otherwise)"
    table = _table(title)
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
        at_moment = [other for other in comparable if other.key.moment == moment]
        if at_moment:
            return min(at_moment, key=lambda other: order(other.key))
    return None


def _who(metrics: Sequence[Metric]) -> str:
    counts = sorted({metric["clients"] for metric in metrics if "clients" in metric})
    words = f"{' or '.join(map(str, counts))} client{'s' * (counts != [1])}".strip()
    left = max(metric.get("left_out", 0) for metric in metrics)
    words += f" ({left} without test images left out)" if left else ""
    whole = max(metric.get("of", 0) for metric in metrics)
    sampled = whole > max(metric.get("clients", 0) + metric.get("left_out", 0) for metric in metrics)
    return words + (f", a fixed sample of the {whole}" if sampled else "")


def _same_round(lines: Sequence[Line]) -> bool:
    return len({(line.done, line.planned) for line in lines}) == 1


def _when(lines: Sequence[Line]) -> str:
    done, planned = lines[0].done, max(line.planned for line in lines)
    if not _same_round(lines):
        return f"After as many of {planned} rounds as the table says"
    if not done:
        return f"Untrained (0 of {planned} rounds)"
    return f"{'Last' if done == planned else 'Latest evaluated'} round ({done} of {planned})"


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
        # Only names may wrap: a number broken over two lines is a wrong number. A long name is broken, not cut.
        number = place >= words
        whole = number or name in ("model", "moment")
        table.add_column(name, justify="right" if number else "left", no_wrap=whole, overflow="fold")


def _row(table: Table, cells: Iterable[str], style: str = "") -> None:
    # Text, not str: names may hold square brackets, which rich would take for markup.
    table.add_row(*(Text(cell) for cell in cells), style=style)
