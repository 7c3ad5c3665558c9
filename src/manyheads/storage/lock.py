"""One process at a time in a run folder: an advisory lock that ends with the process, however that ends."""

import fcntl
import os
from pathlib import Path

from manyheads.errors import InputError

_held: set[int] = set()


def acquire(path: Path) -> int:
    """Lock a file, made where it is missing; the result is for ``release``.

    Raises:
        InputError: another process, or another caller in this one, holds it.
        OSError: the file cannot be made or locked.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    _held.add(descriptor)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        release(descriptor)
        if isinstance(error, BlockingIOError):
            raise InputError(f"another process is running in {path.parent}") from None
        raise
    return descriptor


def release(descriptor: int) -> None:
    """Give a lock back; nothing happens the second time, or in a forked process."""
    if descriptor in _held:
        _held.remove(descriptor)
        os.close(descriptor)


def _forget_in_child() -> None:
    # A forked worker inherits the descriptor and with it the lock, which would so outlive a parent that was killed.
    for descriptor in list(_held):
        release(descriptor)


os.register_at_fork(after_in_child=_forget_in_child)
