"""Whether a folder may become a run's folder, and what to tell the person if not."""

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from manyheads.errors import InputError

CONFIG = "config.toml"
LOCK = ".manyheads.lock"
_FILES = (CONFIG, "partition.safetensors", "data.json")


def refuse_taken(path: Path, config: str) -> None:
    """Pass an empty folder and one where ``RunFolder.create`` was interrupted; nothing is written.

    Raises:
        InputError: the folder holds this run, another one, or anything else.
    """
    if (path / CONFIG).exists():
        difference = _difference(config, _read(path))
        if not difference:
            raise InputError(f"{path} already holds this run; continue it with: manyheads resume {path}")
        raise InputError(f"{path} already holds another experiment (differs in {difference}); choose another --folder")
    foreign = [entry.name for entry in sorted(path.iterdir()) if not _left_by_create(entry)]
    # The lock is the first thing that create makes. Without it, even a file with one of our names is somebody else's.
    if not foreign and not (path / LOCK).exists():
        foreign = [entry.name for entry in sorted(path.iterdir())]
    if foreign:
        raise InputError(f"{path} is no run's folder and not empty (it holds {foreign[0]}); choose another --folder")


def _left_by_create(entry: Path) -> bool:
    if entry.name == LOCK:
        return True
    if entry.name in ("checkpoints", "clients"):
        return entry.is_dir() and all(
            inner.name == "index.jsonl" and inner.stat().st_size == 0 for inner in entry.iterdir()
        )
    if entry.name == "rounds.jsonl":
        return entry.stat().st_size == 0
    return entry.name.lstrip(".").startswith(_FILES)  # with what temporary files add to the names


def _read(path: Path) -> str:
    try:
        return (path / CONFIG).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path / CONFIG} cannot be read: {error}; choose another --folder") from None


def _difference(here: str, there: str) -> str:
    if here == there:
        return ""
    try:
        left, right = dict(_flat(tomllib.loads(here))), dict(_flat(tomllib.loads(there)))
    except tomllib.TOMLDecodeError as error:
        return f"{CONFIG}, which is no valid TOML there: {error}"
    keys = [key for key in [*left, *(key for key in right if key not in left)] if left.get(key) != right.get(key)]
    if not keys:
        return ""
    more = f" and {len(keys) - 1} more" if len(keys) > 1 else ""
    return f"{keys[0]}: {_value(left, keys[0])} here, {_value(right, keys[0])} there{more}"


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _value(table: Mapping[str, Any], key: str) -> str:
    return str(table[key]) if key in table else "unset"
