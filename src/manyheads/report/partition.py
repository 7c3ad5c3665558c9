"""Who holds which labels, as a picture."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from manyheads.data.partition import Partition
from manyheads.report.curves import COLORS, save_figure

_NUMBERS = (40, 26)  # clients, classes: up to here a count fits into its cell
_NAMES = 64  # more class names than this cannot be read under each other
_ORDERED = 120  # more clients than this show a pattern only when like stands beside like


def plot_partition(partition: Partition, labels: NDArray[np.int64], class_names: Sequence[str], path: Path) -> None:
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


@rc_context({"text.parse_math": False})  # a name may hold dollar signs
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
    grid = figure.add_gridspec(2, 2, width_ratios=(9, 1), height_ratios=(1, 5))
    axes = figure.add_subplot(grid[1, 0])
    top = figure.add_subplot(grid[0, 0], sharex=axes)
    side = figure.add_subplot(grid[1, 1], sharey=axes)
    clients = len(counts)
    axes.set_xlabel("client", fontsize=12)
    if clients > _ORDERED:  # by the class of which a client holds most, then by how many
        counts = counts[np.lexsort((-counts.max(axis=1), counts.argmax(axis=1)))]
        axes.set_xlabel("clients, ordered by the class that they hold most of", fontsize=12)
    _cells(figure, axes, figure.add_subplot(grid[0, 1]), counts)
    _class_names(axes, class_names)
    _client_sizes(top, counts.sum(axis=1))
    _auxiliary(side, auxiliary)
    figure.suptitle(f"Train images of each class at each client: {description}", fontsize=15, x=0.01, ha="left")
    save_figure(figure, path)


def _cells(figure: Figure, axes: Axes, corner: Axes, counts: NDArray[Any]) -> None:
    clients, classes = counts.shape
    norm, shown = LogNorm(0.3, max(2, counts.max())), np.ma.masked_equal(counts.T, 0)  # a single image is not white
    image = axes.imshow(shown, aspect="auto", cmap="Blues", norm=norm, interpolation="nearest")
    corner.set_axis_off()
    scale = figure.colorbar(image, cax=corner.inset_axes((0, 0.35, 1, 0.2)), orientation="horizontal", format="{x:.0f}")
    scale.ax.set_title("images\n(white: none)", fontsize=11, loc="left")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=25, integer=True))
    if clients <= _NUMBERS[0] and classes <= _NUMBERS[1]:
        size = min(11.0, 820 / clients / 2.6, 400 / classes / 1.4)  # cells are about 820 points wide and 400 high
        for client, label in zip(*np.nonzero(counts), strict=True):
            count = counts[client, label]
            color = "white" if norm(count) > 0.65 else "#222222"
            axes.text(client, label, str(count), ha="center", va="center", fontsize=size, color=color)


def _class_names(axes: Axes, class_names: Sequence[str]) -> None:
    step = -(-len(class_names) // _NAMES)  # names of more classes than fit are shown at every second, third, ... class
    size = min(12.0, 400 * step / len(class_names))
    axes.set_yticks(range(0, len(class_names), step), [name[:16] for name in class_names[::step]], fontsize=size)
    axes.set_ylabel("class", fontsize=12)


def _client_sizes(axes: Axes, sizes: NDArray[Any]) -> None:
    axes.bar(range(len(sizes)), sizes, color=COLORS[0], width=0.8 if len(sizes) <= _ORDERED else 1.0)
    axes.set_ylabel("images", fontsize=11)
    low, middle, high = (f"{value:,.0f}" for value in (sizes.min(), np.median(sizes), sizes.max()))
    title = f"{sizes.sum():,} images at the clients: {low} to {high} each, median {middle}"
    axes.set_title(title, fontsize=12, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelbottom=False)


def _auxiliary(axes: Axes, counts: NDArray[Any]) -> None:
    axes.barh(range(len(counts)), counts, color=COLORS[1], height=0.7)
    axes.set_xlabel(f"auxiliary set,\n{counts.sum():,} images", fontsize=12)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=3, integer=True))
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelleft=False)
