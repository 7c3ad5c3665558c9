"""Files that are known to be as they were written, by length and checksum."""

import hashlib
import json
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from manyheads.errors import InputError
from manyheads.storage import atomic


class DamagedError(Exception):
    """A file of a checkpoint is missing or is not what was written; the message says which one."""


class Stamp(NamedTuple):
    """What bytes must look like to be the ones that were written."""

    size: int
    sha256: str


def stamp(data: bytes) -> Stamp:
    """The stamp of ``data``."""
    return Stamp(len(data), hashlib.sha256(data).hexdigest())


def read_bytes(path: Path) -> bytes:
    """A file's bytes; DamagedError where it is missing. A file that may not be read is not damaged: PermissionError."""
    try:
        return path.read_bytes()
    except PermissionError:
        raise
    except OSError as error:
        raise DamagedError(f"{path} cannot be read: {error.strerror}") from None


def read_stamped(path: Path, expected: Stamp, *, grows: bool = False) -> bytes:
    """The bytes that had this stamp, with ``grows`` those at the beginning of the file; DamagedError if it has not."""
    data = read_bytes(path)
    data = data[: expected.size] if grows else data
    if stamp(data) != expected:
        raise DamagedError(f"{path} is damaged: its {len(data)} bytes are not the {expected.size} that were written")
    return data


class Log:
    """Lines at the end of a file. The hash runs along, so a stamp costs what was added, not what the file holds."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._size = 0
        self._hash = hashlib.sha256()

    def append(self, row: object) -> None:
        """Add one line of JSON; durable after the next ``sync``."""
        data = json.dumps(row).encode() + b"\n"
        atomic.append(self.path, data)
        self._size += len(data)
        self._hash.update(data)

    def sync(self) -> Stamp:
        """Make every line durable, and return the stamp of the whole file."""
        atomic.sync(self.path)
        return Stamp(self._size, self._hash.hexdigest())

    def cut(self, committed: bytes) -> None:
        """Drop everything after ``committed``, which must be how the file begins."""
        atomic.cut(self.path, len(committed))
        self._size = len(committed)
        self._hash = hashlib.sha256(committed)


def read_rows(file: Path) -> list[dict[str, Any]]:
    """The lines of ``rounds.jsonl``, except a last one that is not complete; none when there is no such file yet.

    Raises:
        InputError: a complete line is not a JSON object with a round.
    """
    rows = []
    for number, line in enumerate(file.read_bytes().split(b"\n")[:-1] if file.exists() else (), start=1):
        try:
            row = json.loads(line)
        except ValueError as error:
            raise InputError(f"{file}, line {number}: not JSON ({error})") from None
        if not isinstance(row, dict) or not isinstance(row.get("round"), int):
            raise InputError(f'{file}, line {number}: not a row of a round (a JSON object with a whole number "round")')
        rows.append(row)
    return rows


class Rows(Sequence[dict[str, Any]]):
    """Rows that are read when they are first asked for: a long run need not hold them."""

    def __init__(self, read: Callable[[], list[dict[str, Any]]]) -> None:
        self._read = read

    @cached_property
    def _rows(self) -> list[dict[str, Any]]:
        return self._read()

    def __getitem__(self, index: Any) -> Any:
        return self._rows[index]

    def __len__(self) -> int:
        return len(self._rows)

    def __eq__(self, other: object) -> bool:
        """With any sequence, such as a list."""
        return isinstance(other, Sequence) and self._rows == list(other)
