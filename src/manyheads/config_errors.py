"""One line for everything that can be wrong in a config: dotted field, value, and the valid range or nearest key."""

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from manyheads.errors import unknown

_KINDS = {"integer": "a whole number", "number": "a number", "string": "text"}
_BOUNDS = {"exclusiveMinimum": "above", "minimum": "at least", "exclusiveMaximum": "below", "maximum": "at most"}


def first_error(error: ValidationError, table: type[BaseModel], section: str, keys: Mapping[str, Iterable[str]]) -> str:
    """The first problem that pydantic found in a section, as one line.

    Args:
        error: what pydantic raised.
        table: the section's class.
        section: its name in the TOML file; empty for the whole config.
        keys: the keys of every section, to find the nearest one.
    """
    problem = error.errors(include_url=False, include_context=False)[0]
    name, value = str(problem["loc"][0]), problem["input"]
    if problem["type"] == "extra_forbidden":
        return unknown_key(section, name, table.model_fields, keys)
    field, schema = f"{section}.{name}".lstrip("."), table.model_json_schema()["properties"][name]
    schema = schema.get("anyOf", [schema])[0]  # where there is another one, it is null
    if "enum" in schema and isinstance(value, str):
        return f"{field}: {unknown(name, value, schema['enum'])}"
    return f"{field} = {value!r}: must be {_expected(schema)}"


def unknown_key(section: str, key: str, siblings: Iterable[str], keys: Mapping[str, Iterable[str]]) -> str:
    """One line for a key that a section does not have: the same key in another section, or the nearest key."""
    siblings, prefix = list(siblings), f"{section}." if section else ""
    nearest = [f"{name}.{key}" for name, names in keys.items() if key in names]
    nearest += [prefix + name for name in difflib.get_close_matches(key, siblings, n=1)]
    if nearest:
        return f"unknown key {prefix + key!r}; did you mean {nearest[0]!r}?"
    has = f"[{section}] has" if section else "the sections are"
    return f"unknown key {prefix + key!r}; {has}: {', '.join(siblings)}"


def _expected(schema: Mapping[str, Any]) -> str:
    """What a field accepts, in words: ``"a number above 0 and at most 1"``."""
    if "enum" in schema:
        return "one of " + ", ".join(map(repr, schema["enum"]))
    bounds = [f"{words} {schema[name]}" for name, words in _BOUNDS.items() if name in schema]
    return f"{_KINDS.get(schema.get('type', ''), 'a table of keys')} {' and '.join(bounds)}".strip()
