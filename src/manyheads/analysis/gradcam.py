"""Grad-CAM: where in a client's images the global and the personal model look.

Selvaraju, Cogswell, Das, Vedantam, Parikh, Batra: Grad-CAM: Visual Explanations from Deep Networks via Gradient-based
Localization. ICCV 2017.

The map of a class is the rectified sum of the last convolution's feature maps, each weighted by the mean gradient of
the class's logit. Each model is asked about the class that it predicts.
"""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import interpolate

from manyheads.analysis.figure import checked, pixels, save, wrapped
from manyheads.analysis.trained import Trained
from manyheads.contract import Data, Predictor
from manyheads.errors import InputError
from manyheads.local.network import Bound, Network, channels_last
from manyheads.report.curves import COLORS

_SCALE = "plasma"
_RIGHT, _WRONG = ("✓", COLORS[2]), ("✗", COLORS[1])


@dataclass(frozen=True)
class View:
    """What a model says of some images and where it looks.

    Attributes:
        layer: the convolution's name.
        predicted: classes, int64 ``[n]``.
        probability: of the predicted classes, ``[n]``, in [0, 1].
        maps: Grad-CAM of the predicted classes, as large as the images, ``[n, h, w]``; not scaled, at least 0.
    """

    layer: str
    predicted: Tensor
    probability: Tensor
    maps: Tensor


@dataclass(frozen=True)
class Choice:
    """Some of a client's test images.

    Attributes:
        rows: places in the client's test images, int64 ``[n]``: first those where models disagree, or err.
        caption: how they were chosen.
    """

    rows: Tensor
    caption: str


def gradcam(run: Trained, client: int, path: Path | str, *, images: int = 6) -> dict[str, View]:
    """Draws some of a client's test images, and where the global and the personal model look in them.

    Args:
        run: the run.
        client: whose images and whose personal model.
        path: the PNG to write.
        images: how many, at least 1; fewer where the client has fewer.

    Returns:
        What was drawn, by ``global`` and ``personal``, where the method has such a model.

    Raises:
        InputError: there is no such client, it has no test images, the method has neither model, the network has no
            convolution, or captum is not installed.
    """
    path = checked(path)
    data, models = run.test(client), predictors(run, client)
    if not len(data):
        raise InputError(f"client {client} has no test images; choose another --client")
    choice = chosen({name: run.logits(model, data).argmax(dim=1) for name, model in models.items()}, data.y, images)
    some = data.take(choice.rows)
    views = {name: view(run, model, some) for name, model in models.items()}
    draw(run, client, some, views, choice.caption, path)
    return views


def predictors(run: Trained, client: int) -> dict[str, Predictor]:
    """A client's models by ``global`` and ``personal``: those that the method has.

    Raises:
        InputError: it has neither.
    """
    found = {"global": run.global_model(), "personal": run.personal(client)}
    models = {name: model for name, model in found.items() if model}
    if not models:
        raise InputError(f"Grad-CAM shows the global and the personal model, and {run.name} has neither")
    return models


def chosen(answers: Mapping[str, Tensor], y: Tensor, images: int) -> Choice:
    """Chooses images: half where two models disagree, half where they agree; of one model, half where it errs.

    Where one half lacks images, the other gives more. In each half classes take turns, those first of which there are
    most images, and within a class the order of the images decides: nothing is drawn.

    Args:
        answers: predicted classes of one or two models, int64 ``[n]``.
        y: labels, int64 ``[n]``.
        images: how many are wanted.
    """
    models = list(answers.values())
    odd = models[0] != (models[1] if len(models) > 1 else y)
    first, rest = in_turns(y, odd), in_turns(y, ~odd)
    many = max(-(-images // 2), images - len(rest))
    rows = [first[:many], rest[: max(0, images - len(first[:many]))]]
    words = ("the models disagree", "they agree") if len(models) > 1 else ("the model errs", "it is right")
    counts = zip(rows, (first, rest), words, strict=True)
    parts = [f"{len(some)} of the {len(pool)} images where {said}" for some, pool, said in counts]
    return Choice(torch.cat(rows), f"{parts[0]}, {parts[1]}; classes take turns, those with most images first")


def in_turns(y: Tensor, wanted: Tensor) -> Tensor:
    """The wanted places, int64: the first one of every class, then the second one, and so on, largest class first."""
    sizes = Counter(y.tolist())
    seen: Counter[int] = Counter()
    turns = []
    for place in wanted.nonzero().flatten().tolist():
        label = int(y[place])
        turns.append((seen[label], -sizes[label], label, place))
        seen[label] += 1
    return torch.tensor([place for *_, place in sorted(turns)], dtype=torch.int64)


def view(run: Trained, model: Predictor, data: Data) -> View:
    """What a model predicts for images, and Grad-CAM of these classes.

    Raises:
        InputError: the network has no convolution, or captum is not installed.
    """
    with torch.no_grad():
        probabilities = run.logits(model, data).softmax(dim=1)
    probability, predicted = probabilities.max(dim=1)
    layer, maps = heat(run.setting.network, model, data, predicted)
    return View(layer, predicted, probability, maps)


def heat(network: Network, model: Predictor, data: Data, target: Tensor) -> tuple[str, Tensor]:
    """Grad-CAM of one class an image.

    Args:
        network: the modules of the model.
        model: the model.
        data: the images.
        target: a class for each image, int64 ``[n]``.

    Returns:
        The convolution's name, and maps as large as the images: ``[n, h, w]``, at least 0.

    Raises:
        InputError: the network has no convolution, or captum is not installed.
    """
    captum = _captum()
    answer = _Answer(network.bind(channels_last(model.tree)), model)
    x = data.x(torch.arange(len(data))).requires_grad_()  # so that gradients reach the layer: all weights are frozen
    name, layer = last_convolution(answer.parts["backbone"], lambda: answer(x[:1]))
    found = captum.LayerGradCam(answer, layer).attribute(x, target, relu_attributions=True).detach()
    return name, interpolate(found, x.shape[2:], mode="bilinear", align_corners=False)[:, 0]


class _Answer(nn.Module):
    """A predictor as a module, for captum."""

    def __init__(self, bound: Bound, predictor: Predictor) -> None:
        super().__init__()
        self.parts = bound.modules
        self._model, self._logits = bound.model, predictor.logits

    def forward(self, x: Tensor) -> Tensor:
        """The logits of images."""
        return self._logits(self._model, x)


def last_convolution(backbone: nn.Module, run: Callable[[], object]) -> tuple[str, nn.Conv2d]:
    """Name and module of a backbone's last convolution, in the order in which they run.

    One of 1x1 counts only where there is no other: it may be a shortcut that runs beside the others, after them.

    Args:
        backbone: the module.
        run: calls it.

    Raises:
        InputError: there is none.
    """
    convolutions = {m: f"backbone.{name}" for name, m in backbone.named_modules() if isinstance(m, nn.Conv2d)}
    ran: list[nn.Conv2d] = []
    hooks = [module.register_forward_hook(lambda module, *_: ran.append(module)) for module in convolutions]
    try:
        run()
    finally:
        for hook in hooks:
            hook.remove()
    if not ran:
        raise InputError("Grad-CAM needs a convolution, and the run's network has none; cnn has (model.name)")
    last = next((module for module in reversed(ran) if max(module.kernel_size) > 1), ran[-1])
    return convolutions[last], last


@rc_context({"text.parse_math": False})  # a name may hold dollar signs
def draw(run: Trained, client: int, data: Data, views: Mapping[str, View], caption: str, path: Path) -> None:
    """Draws images in rows; beside each one, the maps laid over it and what the models say.

    Args:
        run: the run.
        client: whose images they are.
        data: the images.
        views: of each model.
        caption: how the images were chosen.
        path: the PNG to write.
    """
    dataset, columns = run.experiment.dataset, 1 + len(views)
    figure = Figure(figsize=(2.7 * columns + 0.5, 2.6 * len(data) + 2), dpi=100, layout="constrained")
    grid = figure.subplots(len(data), columns, squeeze=False)
    for axes, title in zip(grid[0], ("image and its class", *(f"{name} model" for name in views)), strict=True):
        axes.set_title(title, fontsize=13)
    for place, image in enumerate(pixels(data)):
        label = int(data.y[place])
        _image(grid[place, 0], image, dataset.classes[label], "black")
        for axes, found in zip(grid[place, 1:], views.values(), strict=True):
            said = int(found.predicted[place])
            symbol, color = _RIGHT if said == label else _WRONG
            answer = f"{symbol} {dataset.classes[said][:16]} {100 * float(found.probability[place]):.0f} %"
            _image(axes, image, answer, color)
            _heat(axes, found.maps[place].numpy())
    title = f"Grad-CAM: {run.name} on {dataset.name}, client {client}, after round {run.rounds}"
    figure.suptitle(wrapped(title, figure, 15), fontsize=15, x=0.01, ha="left")
    layer = next(iter(views.values())).layer
    explained = f"Each map is of the class that the model predicts; layer: {layer}."
    figure.supxlabel(wrapped(f"{caption}. {explained}", figure, 11), fontsize=11, x=0.01, ha="left")
    scale = figure.colorbar(ScalarMappable(cmap=_SCALE), ax=grid, location="bottom", fraction=0.02, aspect=40, pad=0.02)
    scale.set_label("Grad-CAM, as a share of each map's greatest value", fontsize=11)
    save(figure, path)


def _image(axes: Axes, image: NDArray[Any], label: str, color: str) -> None:
    axes.imshow(image, cmap="gray", vmin=0, vmax=1)
    axes.set_xlabel(label, fontsize=12, color=color)
    axes.set(xticks=[], yticks=[])


def _heat(axes: Axes, heat: NDArray[Any]) -> None:
    if heat.max() > 0:
        share = heat / heat.max()
        axes.imshow(share, cmap=_SCALE, vmin=0, vmax=1, alpha=0.75 * share)
    else:
        axes.text(0.5, 0.5, "map is 0", color="white", ha="center", va="center", transform=axes.transAxes)


def _captum() -> Any:
    try:
        return importlib.import_module("captum.attr")
    except ImportError:
        raise InputError("Grad-CAM needs captum: pip install 'manyheads[analysis]'") from None
