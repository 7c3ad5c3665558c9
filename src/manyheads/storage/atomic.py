"""The few file operations that a run folder is made of.

Every operation calls ``step`` before and after it touches the disk. It does nothing, unless a test replaces it in order
to stop the process there: that is how "killed at any instant" is tested.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def step(name: str) -> None:
    """Called with ``"before OPERATION PATH"`` and ``"after OPERATION PATH"``; for tests to replace."""


@contextmanager
def _marked(operation: str, path: Path) -> Iterator[None]:
    step(f"before {operation} {path}")
    yield
    step(f"after {operation} {path}")


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file that is there either whole or not at all, whenever the process or the machine dies."""
    temporary = path.with_name(f".{path.name}.tmp")  # a fixed name: what a killed process leaves is soon overwritten
    try:
        write_unsynced(temporary, data)
        sync(temporary)
        rename(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def write_unsynced(path: Path, data: bytes) -> None:
    """Write a file that may be lost or torn until ``sync`` has returned."""
    with _marked("write", path):
        path.write_bytes(data)


def append(path: Path, data: bytes) -> None:
    """Add bytes at the end; they may be lost or torn until ``sync`` has returned."""
    with _marked("append", path), path.open("ab") as file:
        file.write(data)


def cut(path: Path, size: int) -> None:
    """Durably shorten a file to ``size`` bytes. Where it is missing it is made, durable after ``sync_folder``."""
    with _marked("cut", path), path.open("ab") as file:
        file.truncate(size)
    sync(path)


def sync(path: Path) -> None:
    """Force a file's bytes to the disk."""
    with _marked("sync", path):
        _fsync(path)


def sync_folder(path: Path) -> None:
    """Force the names in a folder to the disk: until then a power cut may undo renames, new files and removals."""
    with _marked("sync_folder", path):
        try:
            _fsync(path)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network file systems cannot, and need not
                raise


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def rename(source: Path, target: Path) -> None:
    """Move a file within its folder, over whatever is there; durable after ``sync_folder``."""
    with _marked("rename", target):
        source.replace(target)


def remove(path: Path) -> None:
    """Remove a file that may be gone already; durable after ``sync_folder``."""
    with _marked("remove", path):
        path.unlink(missing_ok=True)


def make_folder(path: Path) -> None:
    """Durably make a folder and the folders above it; NotADirectoryError where one of them is a file."""
    if path.is_dir():
        return
    if path.exists():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
    make_folder(path.parent)
    with _marked("make_folder", path):
        path.mkdir(exist_ok=True)
    sync_folder(path.parent)


@contextmanager
def one_line(what: str, kind: type[Exception], advice: str = "") -> Iterator[None]:
    """Raise ``kind`` with "what: the system's reason, advice" where the system refuses a file operation."""
    try:
        yield
    except OSError as error:
        raise kind(f"{what}: {error.strerror or error}{advice}") from None
