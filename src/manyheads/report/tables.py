"""The tables of a report: final accuracy, paired differences between methods, and what a round costs."""

import math
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from statistics import mean, median, stdev

from rich.box import SIMPLE_HEAD
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from manyheads.report.rows import PRIOR, Line, Metric, Row, Run, by_label, is_teacher, line_name, order

_TITLES = {"client test": "clients' own test images", "global test": "all test images"}
_WORDS = {
    "client test": "Accuracy on each client's own test images (client test), mean over {}, every client alike "
    "(macro average); client std: standard deviation over clients; worst decile: mean of the lowest tenth",
    "global test": "Accuracy on all test images together (global test), every image alike (micro average)",
}
_LOCAL = (
    "The same images, mean over {}; each client's own model as its last local training left it, before the aggregation "
    "(post_local). Not comparable with the table above."
)
_MOMENTS = {"post_agg": "before local training", "post_adapt": "after adaptation to the client's own train images"}


def final_table(lines: Sequence[Line], ranked: bool = True) -> Table:
    """Accuracy, in per cent, of lines of one group.

    With several seeds: mean ± standard deviation over seeds. The spread over clients is the mean over seeds.

    Args:
        lines: Lines of one group (see ``Key.group``), at least one.
        ranked: The highest first; False leaves the lines in their order.
    """
    data, average, local = lines[0].key.group
    spread = ["client\nstd", "worst\ndecile"] if data == "client test" else []
    table = _table(f"{_TITLES[data]}{', after local training' if local else ''}, {average} average")
    _columns(table, "method", "model", "moment", "accuracy %", "round", "seeds", *spread, words=3)
    for line in sorted(lines, key=lambda line: -mean(line.accuracies.values()) if ranked else 0):
        cells = [line_name(line.label, line.method, line.key, full=False), line.key.model, line.key.moment]
        cells += [plus_minus(list(line.accuracies.values())), f"{line.done}/{line.planned}", str(len(line.metrics))]
        cells += [_percent(line, "std"), _percent(line, "worst_decile")] if spread else []
        _row(table, cells, style="dim" if is_teacher(line.method, line.key) else "")
    return table


def in_words(lines: Sequence[Line]) -> str:
    """Says in words what the numbers of ``final_table(lines)`` are."""
    metrics = [metric for line in lines for metric in line.metrics.values()]
    if lines[0].key.local:
        return _LOCAL.format(_who(metrics, "those that have taken part, of the"))
    said = _WORDS[lines[0].key.data].format(_who(metrics, "a fixed sample of the"))
    if any(len(line.metrics) > 1 for line in lines):
        said += "; ±: standard deviation over seeds"
    personal = {line.key.moment for line in lines if line.key.model == "personal"}
    if personal:
        moments = [f"{words} ({name})" for name, words in _MOMENTS.items() if name in personal]
        said += ". Personal: the client's own model, " + " or ".join(moments)
    if any(line.key.model == "global" for line in lines):
        said += ". Global: the one model of all clients, as aggregated (post_agg)"
    if any(line.key.variant == PRIOR for line in lines):
        said += ". Prior: a global model with the log of the client's class shares added to its logits, untrained"
    if any(is_teacher(line.method, line.key) for line in lines):
        said += ". Teacher: pFedKDH's global model, a diagnostic: clients learn from it, but answer with their own"
    return said + "."


def difference_table(lines: Sequence[Line], minus: Mapping[str, str], least: int = 2) -> Table | None:
    """Paired differences between labels, with a 95 % t interval where seeds are several; None where there are none.

    Lines of one method are compared number by number, teachers left out. A line of another method is compared with the
    line of the same moment, or with the post_agg line; with that of personal models, or else with that of the global
    model. Only lines that were measured after the same number of rounds are compared.

    Args:
        lines: Lines of one group (see ``Key.group``).
        minus: Label to the label that it is compared with.
        least: How many seeds two lines must have in common.
    """
    pairs = []
    for line in lines:
        other = _reference(line, lines, minus.get(line.label))
        seeds = sorted(line.accuracies.keys() & other.accuracies.keys()) if other else []
        if other and len(seeds) >= least:
            names = [line_name(each.label, each.method, each.key) for each in (line, other)]
            pairs.append((names, [line.accuracies[seed] - other.accuracies[seed] for seed in seeds]))
    several = any(len(differences) > 1 for _, differences in pairs)
    title = "difference, percentage points" + ", paired by seed" * several
    if any(line.key.model == "personal" and not line.key.local for line in lines):
        title += "\n(personal models before local training, unless named otherwise)"
    table = _table(title)
    _columns(table, "method", "minus", "difference", *["95 % interval", "seeds"] * several)
    for names, differences in pairs:
        spread = [_interval(differences), str(len(differences))] if several else []
        _row(table, [*names, f"{mean(differences):+.2f}", *spread])
    return table if pairs else None


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
    return decimal(int(median([n for clients in sent for n in clients.values()] or [0])), precision=2) if sent else "-"


def plus_minus(values: Sequence[float]) -> str:
    """Mean ± standard deviation, or the value alone.

    >>> plus_minus([90.0, 92.0])
    '91.00 ± 1.41'
    """
    return f"{mean(values):.2f} ± {stdev(values):.2f}" if len(values) > 1 else f"{values[0]:.2f}"


def _interval(differences: Sequence[float]) -> str:
    if len(differences) < 2:
        return "-"
    _, low, high = paired_interval(differences)
    return f"{low:+.2f} to {high:+.2f}"


def _reference(line: Line, lines: Sequence[Line], label: str | None) -> Line | None:
    comparable = [other for other in lines if other.label == label != line.label and other.done == line.done]
    if any(other.method == line.method for other in comparable):
        same = (other for other in comparable if other.key == line.key)
        return None if is_teacher(line.method, line.key) else next(same, None)
    for moment in (line.key.moment, "post_agg"):
        at_moment = [other for other in comparable if other.key.moment == moment]
        if at_moment:
            return min(at_moment, key=lambda other: order(other.key))
    return None


def _who(metrics: Sequence[Metric], some: str) -> str:
    counts = sorted({metric["clients"] for metric in metrics if "clients" in metric})
    left, whole = (max(metric.get(name, 0) for metric in metrics) for name in ("left_out", "of"))
    words = " or ".join(map(str, counts)) + " clients"
    words += f" ({left} without test images left out)" if left else ""
    return words + (f", {some} {whole}" if whole > max([0, *counts]) + left else "")


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
