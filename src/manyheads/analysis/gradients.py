"""The gradient norm of the clients' local objectives over rounds: does a method approach a stationary point?

FedeCouple's theorem is about the mean squared norm of the gradient of the local objectives; a run with
``run.gradients = true`` logs it for every client of a round, at the point where the client starts from.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, StrMethodFormatter
from numpy.typing import NDArray
from rich.table import Table
from rich.text import Text

from manyheads.analysis.figure import checked, save, wrapped
from manyheads.errors import InputError
from manyheads.local.client import SQUARED_GRADIENT
from manyheads.report.curves import COLORS
from manyheads.report.rows import Run, load_runs
from manyheads.report.summary import describe

ENDS = 5  # rounds at either end whose means are compared


@dataclass(frozen=True)
class Norms:
    """The squared gradient norms of a run.

    Attributes:
        label: names the run.
        done: how many rounds were finished when they were taken, ascending, ``[n]``.
        mean: over the clients of the round, ``[n]``.
        low: the lower quartile over these clients, ``[n]``.
        high: the upper quartile, ``[n]``.
    """

    label: str
    done: list[int]
    mean: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]

    @classmethod
    def of(cls, run: Run, label: str) -> "Norms":
        """The norms that a run has logged.

        Raises:
            InputError: it has none.
        """
        rows = [row for row in run.main if SQUARED_GRADIENT in row.get("notes", {})]
        if not rows:
            raise InputError(f"{run.entry.path}: no gradient norms in it; run it again with: --set run.gradients=true")
        clients = [np.array(list(row["notes"][SQUARED_GRADIENT].values())) for row in rows]
        low, high = np.array([np.quantile(norms, (0.25, 0.75)) for norms in clients]).T
        return cls(label, [row["round"] for row in rows], np.array([norms.mean() for norms in clients]), low, high)

    @property
    def ends(self) -> int:
        """How many rounds at either end are compared: 5, or half of the rounds where there are fewer than 10."""
        return min(ENDS, max(1, len(self.done) // 2))

    @property
    def first(self) -> float:
        """The mean of the first rounds."""
        return float(self.mean[: self.ends].mean())

    @property
    def last(self) -> float:
        """The mean of the last rounds."""
        return float(self.mean[-self.ends :].mean())

    @property
    def ratio(self) -> float:
        """Last by first: below 1 where the norm falls."""
        return self.last / self.first


def plot_gradients(folders: Sequence[Path | str], path: Path | str, labels: Sequence[str] = ()) -> list[Norms]:
    """Draws the squared gradient norm over rounds, one line for each run.

    Args:
        folders: of runs or comparisons, run with ``run.gradients = true``.
        path: the PNG to write, 1400 by 800 pixels.
        labels: a name for each run; by default what sets it apart.

    Returns:
        What is drawn, in the order of the folders.

    Raises:
        InputError: a folder holds no run, a run has no norms, or the picture cannot be written.
    """
    path = checked(path)
    runs = [run for folder in folders for run in load_runs(Path(folder))]
    if labels and len(labels) != len(runs):
        raise InputError(f"--labels: {len(labels)} labels for {len(runs)} runs; give each run one, separated by commas")
    title, found = _words(runs)
    norms = [Norms.of(run, label) for run, label in zip(runs, labels or found, strict=True)]
    with rc_context({"text.parse_math": False}):  # a name may hold dollar signs
        save(_drawn(norms, title), path)
    return norms


def table(norms: Sequence[Norms]) -> Table:
    """The mean squared norm at either end of each run, and their ratio."""
    made = Table(title="squared gradient norm of the local objective, mean over clients", title_justify="left")
    made.add_column("run")
    for name in ("rounds", "first", "last", "last / first"):
        made.add_column(name, justify="right")
    for run in norms:
        rounds = f"{run.ends} and {run.ends} of {len(run.done)}"
        # Text, not str: labels may hold square brackets, which rich would take for markup.
        made.add_row(Text(run.label), rounds, f"{run.first:.4g}", f"{run.last:.4g}", f"{run.ratio:.3f}")
    return made


def _words(runs: Sequence[Run]) -> tuple[str, list[str]]:
    """The title, and a label for each run. What all runs share is said in the title, and else in the labels."""
    title, labels = "Squared gradient norm of the clients' local objectives", [run.entry.label for run in runs]
    experiments = [describe([run]) for run in runs]
    if len(set(experiments)) == 1:
        title += f": {experiments[0]}"
    else:
        labels = [f"{label} ({experiment})" for label, experiment in zip(labels, experiments, strict=True)]
    folders = [run.entry.path.name for run in runs]
    return title, [
        f"{label}, {folder}" if labels.count(label) > 1 else label
        for label, folder in zip(labels, folders, strict=True)
    ]


def _drawn(norms: Sequence[Norms], title: str) -> Figure:
    figure = Figure(figsize=(14, 8), dpi=100, layout="constrained")
    figure.suptitle(wrapped(title, figure, 15), fontsize=15, x=0.01, ha="left")
    axes = figure.add_subplot()
    for place, run in enumerate(norms):
        color, dashed = COLORS[place % len(COLORS)], place >= len(COLORS)
        said = (
            f"{run.label}: mean of the first {run.ends} rounds {run.first:.3g}, of the last {run.ends} {run.last:.3g}"
        )
        label = f"{said}, ratio {run.ratio:.2f}"
        axes.plot(run.done, run.mean, color=color, linewidth=2.2, linestyle="--" if dashed else "-", label=label)
        axes.fill_between(run.done, run.low, run.high, color=color, alpha=0.15, linewidth=0)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))  # the default writes powers as mathematics
    axes.set_xlabel("finished rounds", fontsize=12)
    axes.set_ylabel("squared norm, mean over the round's clients", fontsize=12)
    axes.tick_params(labelsize=11)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(color="#dddddd", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(x=0.01)
    axes.legend(fontsize=11, frameon=False)
    figure.supxlabel(
        "full gradient over a client's train images where its round starts, eval mode, not augmented; "
        "band: quartiles over clients",
        fontsize=11,
        x=0.01,
        ha="left",
    )
    return figure
