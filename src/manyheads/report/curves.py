"""Accuracy over rounds, as a picture."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import NamedTuple

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from manyheads.report.rows import Key, Row, Run, RunEntry, by_label, is_teacher, line_name, order
from manyheads.storage.atomic import write_bytes

# Okabe and Ito's colours, which people with any colour vision can tell apart, without the yellow that white swallows.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
_MARKERS = "os^DvPX"
_CLIENTS = "accuracy, mean over clients, %"
_TITLES = {  # data, and whether after local training
    ("client test", False): ("Clients' own test images", _CLIENTS),
    ("client test", True): ("Clients' own test images,\nafter local training", _CLIENTS),
    ("global test", False): ("Global models\non all test images", "accuracy, %"),
}
_STYLES: dict[str, tuple[str | tuple[float, tuple[float, float]], str]] = {
    "post_agg": ("-", "solid: personal models before local training"),
    "post_adapt": ((0, (4, 1.5)), "dashed: after adaptation to own train images"),
    "post_local": ("-", ""),  # has a panel of its own, which says so
    "global": ((0, (1, 1)), "dotted: global model"),
    "variant": ("-.", "dash-dotted: a named variant"),
}
_POINTS = 72 / 100  # of a pixel
_HEIGHT = 620.0  # of all panels, about, in pixels


class Curve(NamedTuple):
    """One line of the picture: accuracies in per cent after ``done`` rounds, and the half width of the band.

    The band is the standard deviation over ``seeds``, or over clients where that is 1.
    """

    done: list[int]
    accuracy: list[float]
    band: list[float]
    seeds: int


class Drawn(NamedTuple):
    """A curve, its name, and the place of its label, which gives its colour and marker."""

    curve: Curve
    name: str
    key: Key
    teacher: bool
    place: int

    @property
    def color(self) -> str:
        """The colour of the label."""
        return COLORS[self.place % len(COLORS)]


@rc_context({"text.parse_math": False})  # a name may hold dollar signs
def plot_curves(runs: Mapping[str, Sequence[Row]], path: Path, title: str = "") -> None:
    """Draws one line for each label and headline number, over the finished rounds.

    Args:
        runs: Label to the rows of its run. The label is the method's name and, with several seeds, ``", seed 1"``,
            as ``compare`` writes it; the seeds of a method are drawn as one line.
        path: The PNG to write, 1400 by 800 pixels.
        title: A line above the picture.
    """
    flat = []
    for name, rows in runs.items():
        label, _, seed = name.partition(", seed ")
        flat.append(Run(RunEntry(label, label, int(seed or 0), path), rows, {}))
    plot_runs(flat, path, title)


@rc_context({"text.parse_math": False})  # a name may hold dollar signs
def plot_runs(runs: Sequence[Run], path: Path, title: str = "") -> None:
    """Draws the runs of a folder, the seeds of a label as one line; see ``plot_curves``.

    On the left accuracy on clients' own test images, on the right the same after local training, and that of global
    models on all test images. A band is one standard deviation: over seeds where there are several, else over clients.
    Teachers have none.
    """
    drawn = _drawn(runs)
    panels = [lines for panel in _TITLES if (lines := [line for line in drawn if _panel_of(line) == panel])]
    figure = Figure(figsize=(14, 8), dpi=100, layout="constrained")
    figure.suptitle(title, fontsize=15, x=0.01, ha="left")
    # The first, the clients' own images, which most come for, gets the larger part.
    others = panels[1:]
    grid = figure.add_gridspec(max(1, len(others)), 1 + bool(others), width_ratios=(2, 1) if others else None)
    for lines in panels[:1]:
        _panel(figure.add_subplot(grid[:, 0]), lines, _HEIGHT)
    for place, lines in enumerate(others):
        _panel(figure.add_subplot(grid[place, 1]), lines, _HEIGHT / len(others) - 30 * (len(others) - 1))
    figure.supxlabel(_legend(drawn), fontsize=11, x=0.01, ha="left")
    save_figure(figure, path)


def _drawn(runs: Sequence[Run]) -> list[Drawn]:
    drawn = []
    for place, (label, group) in enumerate(by_label(runs).items()):
        method = group[0].entry.method
        for key in sorted({key for run in group for key in run.headline}, key=order):
            name = line_name(label, method, key)
            drawn.append(Drawn(curve(group, key), name, key, is_teacher(method, key), place))
    return drawn


def curve(runs: Sequence[Run], key: Key) -> Curve:
    """The line of one headline number, which at least one run has, over the seeds that got furthest."""
    series = [run.headline[key] for run in runs if key in run.headline]
    last = max(max(rounds) for rounds in series)
    series = [rounds for rounds in series if last in rounds]
    done = sorted(set.intersection(*(set(rounds) for rounds in series)))
    values = [[100 * float(rounds[n]["accuracy"]) for rounds in series] for n in done]
    if len(series) > 1:
        band = [stdev(of_seeds) for of_seeds in values]
    else:
        band = [100 * float(series[0][n].get("std") or 0) for n in done]
    return Curve(done, [mean(of_seeds) for of_seeds in values], band, len(series))


def save_figure(figure: Figure, path: Path) -> None:
    """Writes a figure as PNG: whole or not at all, so that a viewer never meets half a picture."""
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    write_bytes(path, picture.getvalue())


def spread(values: Sequence[float], gap: float) -> list[float]:
    """Moves positions in [0, 1] apart, as little as possible, until neighbours are ``gap`` apart; keeps their order.

    Args:
        values: Ascending.
        gap: The least distance. Smaller where so many would not fit.
    """
    gap = min(gap, 1 / max(len(values) - 1, 1))
    # Less their share of gaps, positions only have to ascend: pool neighbours that do not, at their mean.
    pools: list[list[float]] = []
    for place, value in enumerate(values):
        pools.append([value - place * gap])
        while len(pools) > 1 and mean(pools[-2]) > mean(pools[-1]):
            pools[-2:] = [pools[-2] + pools[-1]]
    room = 1 - gap * (len(values) - 1)
    flat = [min(max(mean(pool), 0.0), room) for pool in pools for _ in pool]
    return [position + place * gap for place, position in enumerate(flat)]


def _panel_of(line: Drawn) -> tuple[str, bool]:
    return line.key.data, line.key.local


def _panel(axes: Axes, lines: Sequence[Drawn], height: float) -> None:
    several = _seeds(lines) > 1
    for line in lines:
        # Seeds differ little, clients much: bands over clients soon cover everything, so more of them are paler. Among
        # bands over seeds, one over clients would be taken for one of them.
        banded = not line.teacher and (line.curve.seeds > 1) == several
        _draw(axes, line, banded * (0.15 if several else min(0.15, 0.4 / len(lines))))
    title, quantity = _TITLES[_panel_of(lines[0])]
    axes.set_title(title, fontsize=13, loc="left")
    axes.set_xlabel("finished rounds", fontsize=12)
    axes.set_ylabel(quantity, fontsize=12)
    axes.tick_params(labelsize=11)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(color="#dddddd", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(x=0.01)
    low, high = axes.get_ylim()
    axes.set_ylim(min(low, high - 5), high)
    _names(axes, sorted(lines, key=lambda line: line.curve.accuracy[-1]), height)


def _draw(axes: Axes, line: Drawn, alpha: float) -> None:
    done, accuracy, band, _ = line.curve
    width, pale = (1.0, 0.5) if line.teacher else (2.2, 1.0)
    (drawn,) = axes.plot(done, accuracy, color=line.color, linestyle=_style(line)[0], linewidth=width, alpha=pale)
    marker = _MARKERS[(line.place + line.place // len(COLORS)) % len(_MARKERS)]
    drawn.set(marker=marker, markersize=3 if line.teacher else 5, markevery=len(done) // 8 + 1)
    if alpha and any(band):
        low = [max(0.0, value - reach) for value, reach in zip(accuracy, band, strict=True)]
        high = [min(100.0, value + reach) for value, reach in zip(accuracy, band, strict=True)]
        axes.fill_between(done, low, high, color=line.color, alpha=alpha, linewidth=0)


def _names(axes: Axes, lines: Sequence[Drawn], height: float) -> None:
    """Writes name and last value of each line, lowest first, beside its end: a legend that needs no looking up."""
    low, high = axes.get_ylim()
    size = max(6.0, min(11.0, height / len(lines) * 0.8 * _POINTS))
    ends = [(line.curve.accuracy[-1] - low) / (high - low) for line in lines]
    for line, end, place in zip(lines, ends, spread(ends, 1.25 * size / _POINTS / height), strict=True):
        axes.annotate(
            f"{line.curve.accuracy[-1]:.1f}  {line.name}",
            xy=(1.0, end),
            xytext=(1.04, place),
            xycoords="axes fraction",
            color=line.color,
            fontsize=size,
            va="center",
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": line.color, "linewidth": 0.8, "shrinkA": 0, "shrinkB": 0}
            | {"relpos": (0, 0.5)},
        )


def _legend(lines: Sequence[Drawn]) -> str:
    used = {_style(line) for line in lines}
    parts = [style[1] for style in _STYLES.values() if style in used and style[1]]
    parts += ["thin: teacher, a diagnostic"] if any(line.teacher for line in lines) else []
    seeds = _seeds(lines)
    band = (
        f"line and band: mean and standard deviation over {seeds} seeds"
        if seeds > 1
        else ("band: standard deviation over clients")
    )
    return ";  ".join(parts) + "\n" + band


def _style(line: Drawn) -> tuple[str | tuple[float, tuple[float, float]], str]:
    key = line.key
    return _STYLES["variant" if key.variant else "global" if key.model == "global" else key.moment]


def _seeds(lines: Sequence[Drawn]) -> int:
    return max((line.curve.seeds for line in lines), default=1)
