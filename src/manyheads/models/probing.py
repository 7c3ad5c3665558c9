"""Try a model on two images before a run starts, and refuse in one line what would spoil the run later."""

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, resolve_name

from manyheads.errors import InputError
from manyheads.models.checks import Shape
from manyheads.models.dropout import set_generator
from manyheads.models.split import SplitModel


def probe(model: SplitModel, shape: Shape, classes: int) -> int:
    """Run two random images through copies of ``model`` in train and eval mode.

    Neither the model (BatchNorm statistics, mode, generators) nor torch's global generator is changed.

    Args:
        model: The model.
        shape: Images, ``(c, h, w)``.
        classes: Number of logits that there should be.

    Returns:
        The number of features.

    Raises:
        InputError: When the network does not take these images, gives anything but ``[2, features]`` features and
            ``[2, classes]`` logits, draws from torch's global generator (as functional dropout does), is random in any
            other way, or does something after the head that ``from_module`` took out.
    """
    images = torch.randn(2, *shape, generator=torch.Generator().manual_seed(0))
    images = images.contiguous(memory_format=torch.channels_last)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        trained = _fresh(model, train=True)
        features = _run(trained.backbone, images)
        _check_matrix("backbone's features", features)
        logits = _run(trained.head, features)
        _check_matrix("head's logits", logits)
        if logits.shape[1] != classes:
            raise InputError(f"the model's head gives {logits.shape[1]} logits, but the data has {classes} classes")
        if not _same(_run(_fresh(model, train=True), images), logits):
            raise InputError("the model gives other logits for the same images: it draws random numbers outside torch")
        _check_whole(_fresh(model, train=False), images)
    return features.shape[1]


class _Watch(TorchFunctionMode):
    """Remembers the first torch function during which torch's global generator moved on."""

    def __init__(self) -> None:
        super().__init__()
        self.found: str | None = None

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> object:
        before = torch.get_rng_state()
        result = func(*args, **(kwargs or {}))
        if self.found is None and not torch.equal(before, torch.get_rng_state()):
            self.found = resolve_name(func) or getattr(func, "__name__", str(func))
        return result


def _fresh(model: SplitModel, train: bool) -> SplitModel:
    """A copy on the CPU, so that a forward pass in train mode leaves the model's buffers alone."""
    fresh = copy.deepcopy(model).to("cpu").train(train)
    set_generator(fresh, torch.Generator().manual_seed(0))
    return fresh


def _run(module: nn.Module, x: Tensor) -> Tensor:
    before = torch.get_rng_state()
    try:
        with _Watch() as watch:
            result = module(x)
    except InputError:
        raise
    except Exception as error:  # a person's network can fail in any way
        raise InputError(_failure(error, x)) from error
    if watch.found is not None or not torch.equal(before, torch.get_rng_state()):
        name = watch.found or "a function that could not be named"
        raise InputError(
            f"the model draws from torch's global generator, in {name}: runs would not repeat; use the module "
            "manyheads.models.Dropout, or another with a generator of its own, instead"
        )
    if not isinstance(result, Tensor):
        raise InputError(f"the model returns {type(result).__name__}, but must return one tensor")
    return result


def _failure(error: Exception, x: Tensor) -> str:
    reason = str(error).strip().partition("\n")[0]
    if "view size is not compatible" in reason:
        return "the model calls .view on a channels-last tensor: write .flatten(1) or .reshape(...) there"
    given = "x".join(map(str, x.shape[1:]))
    what = f"images of shape {given}" if x.dim() == 4 else f"features of shape {given}"
    return f"the model does not take {what} ({type(error).__name__}: {reason})"


def _check_matrix(what: str, x: Tensor) -> None:
    if x.dim() != 2 or x.shape[0] != 2:
        raise InputError(f"the {what} have shape {list(x.shape)} for two images, but must be [2, n]: flatten them")


def _check_whole(model: SplitModel, images: Tensor) -> None:
    """Refuse a network that goes on after its head: its split would be another function."""
    logits = _run(model, images)
    if not _same(_run(model.to_module(), images), logits):
        line = f"the network does something after its head {model.head_path!r} (softmax?): let it return logits"
        raise InputError(line)


def _same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.allclose(a, b, rtol=1e-4, atol=1e-6, equal_nan=True)
