"""What a config may choose from, and which options each choice has: read from the catalogs, without torch or numpy."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from manyheads.algorithms import registry
from manyheads.data import catalog as data_catalog
from manyheads.errors import InputError, unknown
from manyheads.models import catalog as model_catalog

_KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}


def check_source(name: str) -> str:
    """The name, if there is such a source; paths and hub names are looked at when they are loaded."""
    if not data_catalog.is_own(name):
        _check_known("data.source", "source", name, data_catalog.SOURCES)
    return name


def defaults(section: str, choice: str) -> Mapping[str, Any] | None:
    """The options of a partition kind, a model or a method with their defaults; None when anything is allowed.

    Args:
        section: ``"partition"``, ``"model"`` or ``"algorithm"``.
        choice: the value of ``kind`` or ``name``.

    Raises:
        InputError: there is no such choice.
    """
    if section == "algorithm":
        return registry.fields(choice)
    if section == "partition":
        _check_known("partition.kind", "partition", choice, data_catalog.PARTITIONS)
        return data_catalog.PARTITION_OPTIONS[choice]
    if ":" in choice:  # package.module:factory
        return None
    _check_known("model.name", "model", choice, model_catalog.MODELS)
    return model_catalog.options(choice)


def catalog(what: str, profiles: Mapping[str, str]) -> list[tuple[str, str, Mapping[str, Any]]]:
    """Name, description and options of all ``methods``, ``data``, ``partitions``, ``models`` or ``profiles``."""
    if what == "methods":
        return [_method(name) for name in registry.names()]
    if what == "partitions":
        return [(name, text, data_catalog.PARTITION_OPTIONS[name]) for name, text in data_catalog.PARTITIONS.items()]
    if what == "models":
        return [(name, text, model_catalog.options(name)) for name, text in model_catalog.MODELS.items()]
    texts = {**data_catalog.SOURCES, "PATH": data_catalog.OWN_DATA} if what == "data" else profiles
    return [(name, text, {}) for name, text in texts.items()]


def check(field: str, value: Any, default: Any) -> Any:
    """The option's value, with the type of its default. Raises InputError for a value of another type.

    A default of None says nothing about the type: any number, text or truth value is taken, None itself, and a list.
    Whole numbers are welcome where the default is a float. Lists become tuples.
    """
    listed = isinstance(value, list | tuple)
    if listed and (default is None or isinstance(default, list | tuple)):
        element = default[0] if default else None
        return tuple(check(f"{field}[{i}]", item, element) for i, item in enumerate(value))
    if isinstance(default, float) and type(value) is int:
        return float(value)
    fits = type(value) in {*_KINDS, type(None)} if default is None else type(value) is type(default)
    if fits and not (isinstance(value, float) and not math.isfinite(value)):
        return value
    if isinstance(default, list | tuple):
        wanted = f"a list such as {list(default)!r}"
    elif default is None:
        wanted = "a number, text, or true or false"
    else:
        wanted = f"{_KINDS[type(default)]}, such as {in_toml(default)}"
    raise InputError(f"{field} = {list(value) if listed else value!r}: must be {wanted}")


def in_toml(value: Any) -> str:
    """An option's value as a config or ``--set`` has it."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return repr(list(value) if isinstance(value, tuple) else value)


def _check_known(field: str, what: str, name: str, choices: Iterable[str]) -> None:
    if name not in choices:
        raise InputError(f"{field}: {unknown(what, name, choices)}")


def _method(name: str) -> tuple[str, str, Mapping[str, Any]]:
    try:
        return name, registry.describe(name), registry.fields(name)
    except InputError as error:  # one broken file must not hide the others
        return name, f"cannot be used: {error}", {}
