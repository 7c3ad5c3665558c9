"""From a name and options to a model."""

import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any, cast

from manyheads.errors import InputError, unknown
from manyheads.models import catalog
from manyheads.models.checks import Shape
from manyheads.models.dropout import replace_dropout
from manyheads.models.split import SplitModel


def build(name: str, *, shape: Shape, classes: int, options: Mapping[str, Any]) -> SplitModel:
    """Build a model; its weights come from torch's global generator, so seed that one first.

    Args:
        name: A built-in model (see ``catalog.names``) or a factory of your own as ``"package.module:factory"``, which
            is called with ``shape=``, ``classes=`` and the options, and returns a ``SplitModel``.
        shape: Images, ``(c, h, w)``.
        classes: Number of logits, at least 2.
        options: The model's options.

    Raises:
        InputError: On an unknown model or option, a value of the wrong type or out of range, images that are too
            small, or a factory that cannot be imported or called.
    """
    if ":" in name:
        return _build_user(name, shape, classes, options)
    checked = check_options(name, options)
    factory: Callable[..., SplitModel] = getattr(importlib.import_module(catalog.module_of(name)), name)
    return factory(shape=shape, classes=classes, **checked)


def check_options(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a built-in model with the types of its defaults (a list becomes a tuple).

    Raises:
        InputError: On an unknown model or option, or a value of the wrong type.
    """
    defaults = catalog.options(name)
    for key in options:
        if key not in defaults:
            raise InputError(unknown(f"option of model {name!r}", key, defaults))
    return {key: _typed(f"model.{key}", value, defaults[key]) for key, value in options.items()}


def _typed(field: str, value: object, default: object) -> object:
    if isinstance(default, tuple):
        if isinstance(value, list | tuple) and all(type(element) is int for element in value):
            return tuple(value)
        raise InputError(f"{field} = {value!r}: must be a list of whole numbers, such as {list(default)}")
    if isinstance(default, float) and type(value) is int:
        return float(value)
    if type(value) is not type(default):
        kind = {int: "a whole number", float: "a number"}.get(type(default), type(default).__name__)
        raise InputError(f"{field} = {value!r}: must be {kind}, such as {default}")
    return value


def _build_user(name: str, shape: Shape, classes: int, options: Mapping[str, Any]) -> SplitModel:
    factory = _import(name)
    try:
        inspect.signature(factory).bind(shape=shape, classes=classes, **options)
    except TypeError as error:
        called = f"shape=, classes= and the options {sorted(options)}"
        raise InputError(f"model.name = {name!r} cannot be called with {called}: {error}") from error
    try:
        model = factory(shape=shape, classes=classes, **options)
    except InputError as error:  # such as a head that the network does not have
        raise InputError(f"model.name = {name!r}: {error}") from error
    if not isinstance(model, SplitModel):
        kind = type(model).__name__
        raise InputError(f"model.name = {name!r} returned {kind}: return SplitModel.from_module(network, head='fc')")
    replace_dropout(model)
    return model


def _import(name: str) -> Callable[..., object]:
    path, _, attribute = name.partition(":")
    try:
        module = importlib.import_module(path)
    except Exception as error:  # a person's file can fail in any way while it is imported
        reason = f"{type(error).__name__}: {error}".partition("\n")[0]
        line = f"model.name = {name!r}: cannot import {path!r} ({reason}); is its folder on PYTHONPATH?"
        raise InputError(line) from error
    factory = getattr(module, attribute, None)
    if callable(factory):
        return cast("Callable[..., object]", factory)
    choices = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
    raise InputError(f"model.name = {name!r}: {unknown(f'factory in {path!r}', attribute, choices)}")
