"""A file that only grows, whose committed beginning is known by its length and checksum."""

import hashlib
from pathlib import Path
from typing import NamedTuple

from manyheads.storage import atomic


class Stamp(NamedTuple):
    """What bytes must look like to be the ones that were written."""

    size: int
    sha256: str

    def fits(self, data: bytes) -> bool:
        """Whether ``data`` are those bytes."""
        return len(data) == self.size and hashlib.sha256(data).hexdigest() == self.sha256


def stamp(data: bytes) -> Stamp:
    """The stamp of ``data``."""
    return Stamp(len(data), hashlib.sha256(data).hexdigest())


class Log:
    """Lines at the end of a file. The hash runs along, so a stamp costs what was added, not what the file holds."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._size = 0
        self._hash = hashlib.sha256()

    def append(self, line: str) -> None:
        """Add one line; durable after the next ``sync``."""
        data = line.encode() + b"\n"
        atomic.append(self.path, data)
        self._size += len(data)
        self._hash.update(data)

    def sync(self) -> Stamp:
        """Make every line durable, and return the stamp of the whole file."""
        atomic.sync(self.path)
        return Stamp(self._size, self._hash.hexdigest())

    def beginning(self, expected: Stamp) -> bytes | None:
        """The bytes that had this stamp; None when they are missing or damaged. Later lines do not matter."""
        try:
            with self.path.open("rb") as file:
                data = file.read(expected.size)
        except FileNotFoundError:
            data = b""
        return data if expected.fits(data) else None

    def cut(self, committed: bytes) -> None:
        """Drop everything after ``committed``, which must be how the file begins."""
        atomic.cut(self.path, len(committed))
        self._size = len(committed)
        self._hash = hashlib.sha256(committed)
