"""What a config may choose from, and which options each choice has: read from the catalogs, without torch or numpy."""

import math
from collections.abc import Mapping
from typing import Any

from manyheads.algorithms import registry
from manyheads.data import catalog as data_catalog
from manyheads.errors import InputError, unknown
from manyheads.models import catalog as model_catalog

_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}


def check_source(name: str) -> None:
    """Raise InputError when there is no source of this name; paths and hub names are looked at when they are loaded."""
    if not data_catalog.is_own(name):
        _known("data.source", "source", name, data_catalog.SOURCES)


def of_partition(kind: str) -> Mapping[str, Any]:
    """Options of a partition kind with their defaults. Raises InputError for an unknown kind."""
    _known("partition.kind", "partition", kind, data_catalog.PARTITIONS)
    return data_catalog.PARTITION_OPTIONS[kind]


def of_model(name: str) -> Mapping[str, Any] | None:
    """Options of a network with their defaults; None for ``package.module:factory``, which may take any."""
    if ":" in name:
        return None
    _known("model.name", "model", name, model_catalog.MODELS)
    return model_catalog.options(name)


def of_method(name: str) -> Mapping[str, Any]:
    """Fields of a method with their defaults. Raises InputError for an unknown method."""
    _known("algorithm.name", "method", name, registry.names())
    return registry.fields(name)


def catalog(what: str, profiles: Mapping[str, str]) -> list[tuple[str, str, Mapping[str, Any]]]:
    """Name, description and options of all ``methods``, ``data``, ``partitions``, ``models`` or ``profiles``."""
    if what == "methods":
        return [(name, registry.describe(name), registry.fields(name)) for name in registry.names()]
    if what == "partitions":
        return [(name, text, of_partition(name)) for name, text in data_catalog.PARTITIONS.items()]
    if what == "models":
        return [(name, text, model_catalog.options(name)) for name, text in model_catalog.MODELS.items()]
    if what == "data":
        return [(name, text, {}) for name, text in {**data_catalog.SOURCES, "PATH": data_catalog.OWN_DATA}.items()]
    return [(name, text, {}) for name, text in profiles.items()]


def check(field: str, value: Any, default: Any) -> Any:
    """The option's value, with the type of its default. Raises InputError for a value of another type.

    A default of None says nothing about the type: any number, text or truth value is taken, and None itself.
    Whole numbers are welcome where the default is a float. Lists become tuples.
    """
    if isinstance(value, list | tuple):
        if default is not None and not isinstance(default, list | tuple):
            raise InputError(f"{field} = {list(value)!r}: must be {_WORDS[type(default)]}")
        element = default[0] if default else None
        return tuple(check(f"{field}[{i}]", item, element) for i, item in enumerate(value))
    if isinstance(default, list | tuple):
        raise InputError(f"{field} = {value!r}: must be a list such as {list(default)!r}")
    if default is None and (value is None or type(value) in _WORDS):
        return _finite(field, value)
    if type(value) is type(default):
        return _finite(field, value)
    if isinstance(default, float) and type(value) is int:
        return float(value)
    wanted = "a number, text, or true or false" if default is None else f"{_WORDS[type(default)]}, such as {default!r}"
    raise InputError(f"{field} = {value!r}: must be {wanted}")


def _finite(field: str, value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        raise InputError(f"{field} = {value!r}: must be a finite number")
    return value


def _known(field: str, what: str, name: str, choices: Any) -> None:
    if name not in choices:
        raise InputError(f"{field}: {unknown(what, name, choices)}")
