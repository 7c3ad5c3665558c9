"""t-SNE: what the features of test images look like, run beside run.

van der Maaten, Hinton: Visualizing Data using t-SNE. JMLR 2008.

All runs get the same images in the same order. A map keeps neighbours together and little else: its axes, the sizes of
its clusters and the distances between them mean nothing. So each panel states two numbers of the features themselves,
before t-SNE: how far classes are apart (silhouette), and how often an image's neighbours are of its class.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib import colormaps, rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke
from numpy.typing import NDArray
from sklearn.manifold import TSNE
from sklearn.metrics import silhouette_score
from sklearn.neighbors import NearestNeighbors
from threadpoolctl import threadpool_limits

from manyheads.analysis.figure import checked, save, wrapped
from manyheads.analysis.trained import Trained, names
from manyheads.data.dataset import Dataset
from manyheads.data.sampling import Ints, stratified, stream
from manyheads.engines import one_thread
from manyheads.errors import InputError
from manyheads.report.curves import COLORS

Floats = NDArray[Any]

LEAST = 10  # images; fewer show nothing
_PERPLEXITY = 30.0  # the middle of the authors' 5 to 50
_NEIGHBOURS = 10
_COLORS = (*COLORS, "#882255", "#999933", "#888888")  # for up to ten classes; more take theirs from a scale
_MARKERS = "o^sDvP*X<>"
_CAPTION = (
    "Silhouette (by class, -1 to 1) and nearest neighbours (the share of images that their 10 nearest others put into "
    "the right class) measure the features themselves. On a map only nearness counts, not direction, size or distance."
)
_NAMED = 20  # more class names than this would cover the map


@dataclass(frozen=True)
class Sample:
    """The test images that all runs are shown, and whose they are.

    Attributes:
        rows: places in the test set, int64 ``[n]``; clients follow each other.
        y: labels, int64 ``[n]``.
        owner: client ids, int64 ``[n]``; None where the images are of the whole test set.
    """

    rows: Ints
    y: Ints
    owner: Ints | None = None

    @classmethod
    def of(cls, runs: Sequence[Trained], clients: Sequence[int] = (), images: int = 1500, seed: int = 0) -> Sample:
        """Draws at most ``images`` test images, stratified by class; of each client an equal share of them.

        Raises:
            InputError: the runs have not the same test images, there is no such client, or the images are too few.
        """
        _check_same(runs, clients)
        federation = runs[0].experiment.federation
        labels = federation.test.y.numpy()
        own = {client: federation.test_rows(client).numpy() for client in clients} or {-1: np.arange(len(labels))}
        parts = [rows[_drawn(labels[rows], images // len(own), seed)] for rows in own.values()]
        rows = np.concatenate(parts)
        if len(rows) < LEAST:
            raise InputError(f"t-SNE of {len(rows)} test images{_whose(clients)}: it takes at least {LEAST}")
        owner = np.repeat(np.array(list(own)), [len(part) for part in parts])
        return cls(rows, labels[rows], owner if clients else None)

    @property
    def clients(self) -> list[int]:
        """Whose images they are; empty where they are of the whole test set."""
        return [] if self.owner is None else list(dict.fromkeys(self.owner.tolist()))


@dataclass(frozen=True)
class Panel:
    """One run's features.

    Attributes:
        name: the run's.
        rounds: how many are done.
        features: ``[n, feature_dim]``, in the sample's order.
        places: on the map, ``[n, 2]``.
        silhouette: the features' mean silhouette by class, in [-1, 1]; None where it is not defined.
        neighbours: the share of images that their 10 nearest others put into the right class, in [0, 1].
    """

    name: str
    rounds: int
    features: Floats
    places: Floats
    silhouette: float | None
    neighbours: float

    @classmethod
    def of(cls, name: str, run: Trained, sample: Sample, seed: int) -> Panel:
        """Computes features and map.

        Raises:
            InputError: the method shares no backbone, or the features cannot be mapped.
        """
        with one_thread(), threadpool_limits(1):  # sums over several threads have other bits, so other maps
            features, y = features_of(run, sample), sample.y
            if not np.isfinite(features).all() or not np.ptp(features, axis=0).any():
                raise InputError(f"{name}: its features are not finite or the same for all images, so there is no map")
            return cls(
                name, run.rounds, features, places(features, seed), silhouette(features, y), neighbours(features, y)
            )

    def __str__(self) -> str:
        apart = "" if self.silhouette is None else f"silhouette {self.silhouette:.3f}, "
        return f"{apart}nearest neighbours right {100 * self.neighbours:.1f} %"


def tsne(
    runs: Sequence[Trained],
    path: Path | str,
    *,
    clients: Sequence[int] = (),
    images: int = 1500,
    seed: int = 0,
    labels: Sequence[str] = (),
    track: Callable[[Sequence[Trained]], Iterable[Trained]] = iter,
) -> list[Panel]:
    """Draws the t-SNE of each run's features, a panel a run, on the same test images in the same order.

    Args:
        runs: at least one, all on the same data set.
        path: the PNG to write.
        clients: whose own test images, each under its client's model. Where it is empty: images of the whole test set,
            under the backbone as aggregated last, which every client receives.
        images: how many at most.
        seed: of the choice of images and of t-SNE; the same seed gives the same picture.
        labels: a name for each run; by default its method, and in what its config differs.
        track: goes through the runs, such as with a progress bar.

    Returns:
        What was drawn, in the order of the runs.

    Raises:
        InputError: the runs have not the same test images, a method shares no backbone, or the images are too few.
    """
    if labels and len(labels) != len(runs):
        raise InputError(f"--labels: {len(labels)} labels for {len(runs)} runs; give each run one, separated by commas")
    path = checked(path)
    sample = Sample.of(runs, clients, images, seed)
    titles = iter(labels or names(runs))
    panels = [Panel.of(next(titles), run, sample, seed) for run in track(runs)]
    panels = [replace(panel, places=turned(panel.places, panels[0].places)) for panel in panels]
    draw(panels, sample, runs[0].experiment.dataset, path)
    return panels


def features_of(run: Trained, sample: Sample) -> Floats:
    """The features of the sample's images, ``[n, feature_dim]``: under each owner's model, or the shared backbone."""
    test, rows = run.experiment.federation.test, torch.from_numpy(sample.rows)
    if sample.owner is None:
        return run.features(run.shared_backbone, test.take(rows)).numpy()
    own = (run.features(run.model(k), test.take(rows[torch.from_numpy(sample.owner == k)])) for k in sample.clients)
    return torch.cat(list(own)).numpy()


def places(features: Floats, seed: int) -> Floats:
    """The t-SNE map of features ``[n, d]``: ``[n, 2]``."""
    perplexity = min(_PERPLEXITY, (len(features) - 1) / 3)  # it stands for a number of neighbours
    init = "pca" if features.shape[1] > 1 else "random"
    found: Floats = TSNE(perplexity=perplexity, init=init, random_state=seed).fit_transform(features)
    return found


def turned(places: Floats, onto: Floats) -> Floats:
    """A map ``[n, 2]`` turned and mirrored, which changes nothing that it says, to lie as near to another as it can."""
    centred = places - places.mean(axis=0)
    left, _, right = np.linalg.svd(centred.T @ (onto - onto.mean(axis=0)))
    found: Floats = centred @ left @ right
    return found


def silhouette(features: Floats, y: Ints) -> float | None:
    """The mean silhouette of features ``[n, d]`` by class; None where there is one class, or one image of each."""
    return float(silhouette_score(features, y)) if 1 < len(np.unique(y)) < len(y) else None


def neighbours(features: Floats, y: Ints) -> float:
    """The share of images that most of their 10 nearest others put into the right class; a draw goes to the lower."""
    nearest = NearestNeighbors(n_neighbors=min(_NEIGHBOURS, len(y) - 1)).fit(features).kneighbors(return_distance=False)
    votes = np.eye(int(y.max()) + 1, dtype=np.int64)[y[nearest]].sum(axis=1)
    return float((votes.argmax(axis=1) == y).mean())


@rc_context({"text.parse_math": False})  # a name may hold dollar signs
def draw(panels: Sequence[Panel], sample: Sample, data: Dataset, path: Path) -> None:
    """Draws maps: colour says class, and the marker whose image it is.

    Args:
        panels: at least one.
        sample: their images.
        data: the data set.
        path: the PNG to write, 1400 pixels wide, or 900 for one panel.
    """
    columns = {1: 1, 2: 2, 4: 2}.get(len(panels), 3)
    rows, width = -(-len(panels) // columns), 9 if columns == 1 else 14
    figure = Figure(figsize=(width, rows * (0.8 * width / columns + 0.5) + 1.7), dpi=100, layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False).ravel()
    classes = np.unique(sample.y).tolist()
    scale = colormaps["turbo"](np.linspace(0, 1, len(data.classes)))
    colors = dict(enumerate(_COLORS if len(data.classes) <= len(_COLORS) else scale))
    for axes, panel in zip(grid, panels, strict=False):
        _scatter(axes, panel, sample, colors)
        for label in classes if len(classes) <= _NAMED else []:
            _name(axes, panel.places[sample.y == label], data.classes[label], colors[label])
    for axes in grid[len(panels) :]:
        axes.set_axis_off()
    under = "each under its client's model" if sample.clients else "under the backbone that clients receive"
    title = f"t-SNE of the features of {len(sample.y):,} test images{_whose(sample.clients)}, {data.name}"
    figure.suptitle(wrapped(f"{title}: {under}", figure, 15), fontsize=15, x=0.01, ha="left")
    _legend(figure, sample, {data.classes[label]: colors[label] for label in classes})
    save(figure, path)


def _scatter(axes: Axes, panel: Panel, sample: Sample, colors: dict[int, Any]) -> None:
    size = float(np.clip(30_000 / len(sample.y), 8, 60))
    for place, client in enumerate(sample.clients or [None]):
        mine = slice(None) if client is None else sample.owner == client
        x, y = panel.places[mine].T
        own = [colors[label] for label in sample.y[mine]]
        axes.scatter(x, y, size, own, marker=_marker(place), alpha=0.75, linewidths=0)
    axes.set_title(f"{panel.name}, after round {panel.rounds}", fontsize=13, loc="left")
    axes.set_xlabel(str(panel), fontsize=12, loc="left")
    axes.set(xticks=[], yticks=[], aspect="equal", adjustable="datalim", box_aspect=0.8)
    axes.spines[:].set_color("#bbbbbb")


def _name(axes: Axes, places: Floats, name: str, color: Any) -> None:
    """Writes a class's name on the image in its middle: a mean may lie where no image of it is."""
    middle = np.median(np.linalg.norm(places[:, None] - places, axis=2), axis=1).argmin()
    outline = [withStroke(linewidth=3, foreground="white")]
    axes.annotate(name[:16], places[middle], color=color, fontsize=11, fontweight="bold", path_effects=outline).set(
        ha="center", va="center"
    )


def _legend(figure: Figure, sample: Sample, colors: dict[str, Any]) -> None:
    kinds = [(name, "o", color) for name, color in colors.items()] if len(colors) <= _NAMED else []
    kinds += [(f"client {client}", _marker(place), "#444444") for place, client in enumerate(sample.clients)]
    figure.legend(
        handles=[Line2D([], [], color=color, marker=marker, linestyle="", label=name) for name, marker, color in kinds],
        title=wrapped(_CAPTION, figure, 11),
        ncols=int(figure.get_figwidth() // 2),
        loc="outside lower left",
        alignment="left",
        fontsize=11,
        title_fontsize=11,
        frameon=False,
    )


def _marker(place: int) -> str:
    return _MARKERS[place % len(_MARKERS)]


def _drawn(y: Ints, images: int, seed: int) -> Ints:
    return stratified(y, min(images, len(y)), stream(seed, "t-SNE"))


def _whose(clients: Sequence[int]) -> str:
    return f" of client{'s' * (len(clients) > 1)} {', '.join(map(str, clients))}" if clients else ""


def _check_same(runs: Sequence[Trained], clients: Sequence[int]) -> None:
    first = runs[0]
    for run in runs[1:]:
        if run.experiment.dataset.fingerprint != first.experiment.dataset.fingerprint:
            both = f"{first.experiment.dataset.name} and {run.experiment.dataset.name}"
            raise InputError(f"the runs have other images ({both}): panels of one picture show the same ones")
    for client in clients:
        mine = first.test(client).index
        if any(not torch.equal(mine, run.test(client).index) for run in runs):
            raise InputError(f"client {client} has other test images in some runs; give runs of one partition and seed")
