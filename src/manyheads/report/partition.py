"""Who holds which labels, as a picture."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from manyheads.report.curves import COLORS, save_figure

_BUBBLES = (40, 26)  # clients, classes: up to here a count fits into its cell
_NAMES = 64  # more class names than this cannot be read under each other
_ORDERED = 120  # more clients than this show a pattern only when like stands beside like


class Indices(Protocol):
    """The part of a partition that is drawn."""

    @property
    def train(self) -> Sequence[NDArray[np.int64]]:
        """One array of train indices a client."""
        ...

    @property
    def auxiliary(self) -> NDArray[np.int64]:
        """Indices of the auxiliary set, into the train split too."""
        ...

    @property
    def description(self) -> str:
        """How the partition was made, in words."""
        ...


def plot_partition(partition: Indices, labels: NDArray[np.int64], class_names: Sequence[str], path: Path) -> None:
    """Draws how many train images of each class each client holds, and the auxiliary set.

    Args:
        partition: Train indices a client, and those of the auxiliary set.
        labels: The labels of the whole train split, ``[n]``, in ``0..len(class_names) - 1``.
        class_names: One name a class.
        path: The PNG to write, 1400 by 800 pixels.
    """
    classes = len(class_names)
    counts = np.stack([np.bincount(labels[indices], minlength=classes) for indices in partition.train])
    auxiliary = np.bincount(labels[partition.auxiliary], minlength=classes)
    plot_counts(counts, auxiliary, class_names, partition.description, path)


def plot_counts(
    counts: NDArray[Any], auxiliary: NDArray[Any], class_names: Sequence[str], description: str, path: Path
) -> None:
    """Draws counts that are there already; see ``plot_partition``.

    Args:
        counts: Train images, ``[clients, classes]``.
        auxiliary: Images of the auxiliary set, ``[classes]``.
        class_names: One name a class.
        description: Data and partition, for the title.
        path: The PNG to write.
    """
    figure = Figure(figsize=(14, 8), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(2, 2, width_ratios=(9, 1), height_ratios=(1, 5))
    axes = figure.add_subplot(grid[1, 0])
    top = figure.add_subplot(grid[0, 0], sharex=axes)
    side = figure.add_subplot(grid[1, 1], sharey=axes)
    clients, classes = counts.shape
    ordered = clients > _ORDERED
    if ordered:  # by the class of which a client holds most, then by how many
        counts = counts[np.lexsort((-counts.max(axis=1), counts.argmax(axis=1)))]
    if clients <= _BUBBLES[0] and classes <= _BUBBLES[1]:
        _bubbles(axes, counts)
    else:
        _heat(figure, axes, figure.add_subplot(grid[0, 1]), counts)
    _frame(axes, class_names, clients, ordered)
    _client_sizes(top, counts.sum(axis=1))
    _auxiliary(side, auxiliary)
    figure.suptitle(f"Train images of each class at each client: {description}", fontsize=15, x=0.01, ha="left")
    save_figure(figure, path)


def _bubbles(axes: Axes, counts: NDArray[Any]) -> None:
    clients, classes = counts.shape
    client, label = np.nonzero(counts)
    held = counts[client, label]
    # The largest bubble fills its cell; all cells are about 820 points wide and 400 high. Areas are in points squared.
    cell = min(820 / max(clients, 8), 400 / classes, 60)
    axes.scatter(client, label, s=(0.98 * cell) ** 2 * held / held.max(), color=COLORS[4], alpha=0.6, linewidth=0)
    size = min(11.0, cell / 2.6)
    for x, y, count in zip(client.tolist(), label.tolist(), held.tolist(), strict=True):
        axes.text(x, y, str(count), ha="center", va="center", fontsize=size, color="#222222")


def _heat(figure: Figure, axes: Axes, corner: Axes, counts: NDArray[Any]) -> None:
    shown = np.ma.masked_equal(counts.T, 0)
    image = axes.imshow(
        shown, aspect="auto", cmap="viridis_r", norm=LogNorm(1, max(2, counts.max())), interpolation="nearest"
    )
    corner.set_axis_off()
    scale = figure.colorbar(image, cax=corner.inset_axes((0, 0.35, 1, 0.2)), orientation="horizontal", format="{x:.0f}")
    scale.ax.set_title("images\n(white: none)", fontsize=11, loc="left")


def _frame(axes: Axes, class_names: Sequence[str], clients: int, ordered: bool) -> None:
    axes.set_xlim(-0.5, clients - 0.5)
    axes.set_ylim(len(class_names) - 0.5, -0.5)
    axes.set_xlabel("clients, ordered by the class that they hold most of" if ordered else "client", fontsize=12)
    axes.set_ylabel("class", fontsize=12)
    if clients <= _BUBBLES[0]:
        axes.set_xticks(range(clients))
    else:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    # Names of more classes than fit are shown at every second, third, ... class.
    step = -(-len(class_names) // _NAMES)
    size = min(12.0, 400 * step / len(class_names))
    axes.set_yticks(range(0, len(class_names), step), [name[:16] for name in class_names[::step]], fontsize=size)
    axes.set_axisbelow(True)


def _client_sizes(axes: Axes, sizes: NDArray[Any]) -> None:
    axes.bar(range(len(sizes)), sizes, color=COLORS[0], width=0.8 if len(sizes) <= _ORDERED else 1.0)
    axes.set_ylabel("images", fontsize=11)
    low, middle, high = (f"{value:,.0f}" for value in (sizes.min(), np.median(sizes), sizes.max()))
    title = f"{sizes.sum():,} images at the clients: {low} to {high} each, median {middle}"
    axes.set_title(title, fontsize=12, loc="left")
    _plain(axes)
    axes.tick_params(labelbottom=False)


def _auxiliary(axes: Axes, counts: NDArray[Any]) -> None:
    axes.barh(range(len(counts)), counts, color=COLORS[1], height=0.7)
    axes.set_xlabel(f"auxiliary set,\n{counts.sum():,} images", fontsize=12)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=3, integer=True))
    _plain(axes)
    axes.tick_params(labelleft=False)


def _plain(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
