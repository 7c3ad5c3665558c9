"""One line for everything that can be wrong in a config: dotted field, value, and the valid range or nearest key."""

import difflib
import typing
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from manyheads.errors import unknown

_KINDS = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
_BOUNDS = ((Gt, "gt", "above"), (Ge, "ge", "at least"), (Lt, "lt", "below"), (Le, "le", "at most"))


def first_error(error: ValidationError, model: type[BaseModel], section: str, keys: Mapping[str, Iterable[str]]) -> str:
    """The first problem that pydantic found in a section, as one line.

    Args:
        error: what pydantic raised.
        model: the section's class.
        section: its name in the TOML file; empty for the whole config.
        keys: the keys of every section, to find the nearest one.
    """
    problem = error.errors(include_url=False, include_context=False)[0]
    name = str(problem["loc"][0])
    if problem["type"] == "extra_forbidden":
        return unknown_key(section, name, model.model_fields, keys)
    field, value = f"{section}.{name}".lstrip("."), problem["input"]
    info = model.model_fields[name]
    choices = [str(choice) for kind in _kinds(info) for choice in _choices(kind)]
    if choices and isinstance(value, str):
        return f"{field}: {unknown(name, value, choices)}"
    return f"{field} = {value!r}: must be {expected(info)}"


def unknown_key(section: str, key: str, siblings: Iterable[str], keys: Mapping[str, Iterable[str]]) -> str:
    """One line for a key that a section does not have: the nearest key, or the same key in another section."""
    siblings = list(siblings)
    full = f"{section}.{key}" if section else key
    near = [f"{section}.{name}" if section else name for name in difflib.get_close_matches(key, siblings, n=1)]
    elsewhere = [f"{name}.{key}" for name, names in keys.items() if key in names and name != section]
    for nearest in [*near, *elsewhere] if section else [*elsewhere, *near]:
        return f"unknown key {full!r}; did you mean {nearest!r}?"
    has = f"[{section}] has" if section else "the sections are"
    return f"unknown key {full!r}; {has}: {', '.join(siblings)}"


def expected(info: FieldInfo) -> str:
    """What a field accepts, in words: ``"a number above 0 and at most 1"``."""
    words = []
    for kind in _kinds(info):
        if choices := _choices(kind):
            words.append("one of " + ", ".join(map(repr, choices)))
        elif kind in _KINDS:
            words.append(_KINDS[kind])
        elif isinstance(kind, type) and issubclass(kind, BaseModel):
            words.append("a table of keys")
    bounds = [
        f"{text} {getattr(bound, name)}"
        for bound in info.metadata
        for cls, name, text in _BOUNDS
        if isinstance(bound, cls)
    ]
    return f"{' or '.join(words)} {' and '.join(bounds)}".strip()


def _kinds(info: FieldInfo) -> tuple[Any, ...]:
    kind = info.annotation
    if typing.get_origin(kind) is Literal or isinstance(kind, type):
        return (kind,)
    return typing.get_args(kind)


def _choices(kind: Any) -> tuple[Any, ...]:
    return typing.get_args(kind) if typing.get_origin(kind) is Literal else ()
