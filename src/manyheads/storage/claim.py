"""Whether a folder may become a run's folder, and what to tell the person if not."""

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from manyheads.errors import InputError

CONFIG = "config.toml"
LOCK = ".manyheads.lock"


def refuse_taken(path: Path, config: str) -> None:
    """Pass an empty folder and one where ``RunFolder.create`` was interrupted; nothing is written.

    Raises:
        InputError: the folder holds this run, another one, or anything else.
    """
    if (path / CONFIG).exists():
        difference = _difference(config, path / CONFIG)
        if not difference:
            raise InputError(f"{path} already holds this run; continue it with: manyheads resume {path}")
        raise InputError(f"{path} already holds another experiment (differs in {difference}); choose another --folder")
    # The lock is the first thing that create makes. Without it, even a file with one of our names is somebody else's;
    # with it, there is nothing to lose before the first commit.
    inside = sorted(path.glob("checkpoints/*" if (path / LOCK).exists() else "*"))
    if inside:
        held = inside[0].relative_to(path)
        raise InputError(f"{path} is no run's folder and not empty (it holds {held}); choose another --folder")


def _difference(here: str, file: Path) -> str:
    """The first key with another value in ``file``, in words; empty where only comments differ."""
    try:
        left, right = dict(_flat(tomllib.loads(here))), dict(_flat(tomllib.loads(file.read_bytes().decode())))
    except ValueError as error:
        raise InputError(f"{file} is damaged: {error}; choose another --folder") from None
    keys = [key for key in left | right if left.get(key) != right.get(key)]
    if not keys:
        return ""
    first, more = keys[0], f" and {len(keys) - 1} more" if len(keys) > 1 else ""
    return f"{first}: {left.get(first, 'unset')} here, {right.get(first, 'unset')} there{more}"


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
