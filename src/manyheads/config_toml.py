"""Tables of a config as TOML text, and single values that a command line gives."""

import tomllib
from typing import Any

import tomli_w
from pydantic import BaseModel

from manyheads.errors import InputError


def read_override(text: str) -> tuple[str, Any]:
    """Dotted key and value of a text such as ``"train.lr=0.1"``; a bare word is text, ``none`` is no value.

    Raises:
        InputError: when it is not a key and a value.
    """
    key, equals, value = text.partition("=")
    key, value = key.strip(), value.strip()
    if not equals or not all(key.split(".")):
        raise InputError(f"--set {text!r}: write it as key=value, such as train.lr=0.1")
    if value == "none":
        return key, None
    try:
        parsed = tomllib.loads(f"value = {value}")
    except tomllib.TOMLDecodeError:
        return key, value
    return key, parsed["value"] if len(parsed) == 1 else value


def write_section(name: str, section: BaseModel, comments: bool) -> str:
    """A table of a config as TOML text; a field that is None becomes a comment, since TOML has no null."""
    lines = [f"[{name}]"]
    for key, value in section.model_dump().items():
        field = type(section).model_fields.get(key)
        line = f"# {key} =" if value is None else f"{key} = {_value(value)}"
        note = field.description if field and comments else None
        lines.append(f"{line:<24}# {note}" if note else line)
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"  # tomli_w would spread it over several lines
    return tomli_w.dumps({"value": value}).removeprefix("value = ").removesuffix("\n")
