"""Try a model on two images before a run starts, and refuse in one line what would spoil the run later."""

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, resolve_name

from manyheads.errors import InputError
from manyheads.models.dropout import set_generator
from manyheads.models.split import Shape, SplitModel


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
        features = _run("backbone's features", trained.backbone, images)
        logits = _run("head's logits", trained.head, features)
        if logits.shape[1] != classes:
            raise InputError(f"the model's head gives {logits.shape[1]} logits, but the data has {classes} classes")
        if not _same(_run("logits", _fresh(model, train=True), images), logits):
            raise InputError("the model gives other logits for the same images: it draws random numbers outside torch")
        tested = _fresh(model, train=False)
        together = _run("logits", tested, images)
        if not _same(_run("logits", tested, images[:1].expand_as(images).clone())[0], together[0]):
            raise InputError(
                "the model's answer depends on the other images of a batch: its norms need running statistics"
            )
        if not _same(_run("logits", tested.to_module(), images), together):
            after = f"after its head {model.head_path!r} (softmax?)"
            raise InputError(f"the network does something {after}: let it return logits")
    return features.shape[1]


class _Watch(TorchFunctionMode):
    """Remembers the first torch function during which torch's global generator moved on."""

    found = ""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = torch.get_rng_state()
        result = func(*args, **(kwargs or {}))
        if not self.found and not torch.equal(before, torch.get_rng_state()):
            self.found = resolve_name(func) or getattr(func, "__name__", str(func))
        return result


def _fresh(model: SplitModel, train: bool) -> SplitModel:
    """A copy on the CPU, so that a forward pass in train mode leaves the model's buffers alone."""
    fresh = copy.deepcopy(model).to("cpu").train(train)
    set_generator(fresh, torch.Generator().manual_seed(0))
    return fresh


def _run(what: str, module: nn.Module, x: Tensor) -> Tensor:
    """The module's output, a matrix with a row for each of two images; ``what`` names it in messages."""
    before = torch.get_rng_state()
    try:
        with _Watch() as watch:
            result = module(x)
    except Exception as error:  # a person's network can fail in any way
        raise InputError(_failure(error, x)) from error
    if watch.found or not torch.equal(before, torch.get_rng_state()):
        raise InputError(
            f"the model draws from torch's global generator, in {watch.found or 'a function without a name'}: runs "
            "would not repeat; use the module manyheads.models.Dropout, or another with a generator of its own, instead"
        )
    if not isinstance(result, Tensor):
        raise InputError(f"the model returns {type(result).__name__}, but must return one tensor")
    if result.dim() != 2 or len(result) != 2:
        raise InputError(f"the {what} have shape {list(result.shape)} for two images, but must be [2, n]: flatten them")
    return result


def _failure(error: Exception, x: Tensor) -> str:
    reason = str(error).strip().partition("\n")[0]
    if "view size is not compatible" in reason:
        return "the model calls .view on a channels-last tensor: write .flatten(1) or .reshape(...) there"
    given = f"{'images' if x.dim() == 4 else 'features'} of shape {'x'.join(map(str, x.shape[1:]))}"
    return f"the model does not take {given} ({type(error).__name__}: {reason})"


def _same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.allclose(a, b, rtol=1e-4, atol=1e-6, equal_nan=True)
