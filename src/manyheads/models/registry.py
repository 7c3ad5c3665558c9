"""From a name and options to a model."""

import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from manyheads.errors import InputError, unknown
from manyheads.models import zoo
from manyheads.models.catalog import MODELS
from manyheads.models.dropout import replace_dropout
from manyheads.models.split import Shape, SplitModel


def build(name: str, *, shape: Shape, classes: int, options: Mapping[str, Any]) -> SplitModel:
    """Build a model; its weights come from torch's global generator, so seed that one first.

    Args:
        name: A built-in model (see ``catalog.names``) or a factory of your own as ``"package.module:factory"``, which
            is called with ``shape=``, ``classes=`` and the options, and returns a ``SplitModel``.
        shape: Images, ``(c, h, w)``.
        classes: Number of logits, at least 2.
        options: The model's options; a config has checked the types of those of a built-in model.

    Raises:
        InputError: On an unknown model or option, a value out of range, images that are too small, or a factory that
            cannot be imported or called, or returns something else.
    """
    factory = _import(name) if ":" in name else _builtin(name)
    try:
        inspect.signature(factory).bind(shape=shape, classes=classes, **options)
    except TypeError as error:
        called = f"shape=, classes= and the options {sorted(options)}"
        raise InputError(f"model.name = {name!r} cannot be called with {called}: {error}") from error
    try:
        model = factory(shape=shape, classes=classes, **options)
    except InputError as error:  # of one's own factory: such as a head that the network does not have
        raise InputError(f"model.name = {name!r}: {error}" if ":" in name else f"model.{error}") from error
    if not isinstance(model, SplitModel):
        kind = type(model).__name__
        raise InputError(f"model.name = {name!r} returned {kind}: return SplitModel.from_module(network, head='fc')")
    replace_dropout(model)
    return model


def _builtin(name: str) -> Callable[..., object]:
    if name not in MODELS:
        raise InputError(unknown("model", name, MODELS))
    factory: Callable[..., object] = getattr(zoo, name)
    return factory


def _import(name: str) -> Callable[..., object]:
    path, _, attribute = name.partition(":")
    try:
        module = importlib.import_module(path)
    except Exception as error:  # a person's file can fail in any way while it is imported
        reason = f"{type(error).__name__}: {error}".partition("\n")[0]
        line = f"model.name = {name!r}: cannot import {path!r} ({reason}); is its folder on PYTHONPATH?"
        raise InputError(line) from error
    factory: Callable[..., object] | None = getattr(module, attribute, None)
    if not callable(factory):
        own = {key: value for key, value in vars(module).items() if getattr(value, "__module__", "") == path}
        choices = [key for key, value in own.items() if callable(value) and not key.startswith("_")]
        raise InputError(f"model.name = {name!r}: {unknown(f'factory in {path!r}', attribute, choices)}")
    return factory
