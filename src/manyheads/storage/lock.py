"""One process at a time in a run folder."""

import fcntl
import os
import weakref
from pathlib import Path

from manyheads.errors import InputError

_held: "weakref.WeakSet[Lock]" = weakref.WeakSet()


class Lock:
    """An advisory lock that the operating system releases when the process ends, however it ends.

    Raises:
        InputError: another process (or another ``Lock`` of this one) holds it.
        OSError: the file cannot be made or locked.
    """

    def __init__(self, path: Path) -> None:
        self._descriptor: int | None = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.release()
            raise InputError(f"another process is running in {path.parent}") from None
        except OSError:
            self.release()
            raise
        _held.add(self)

    def release(self) -> None:
        """Give the lock back; nothing happens the second time."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _forget_in_child() -> None:
    # A forked worker inherits the descriptor and with it the lock, which would so outlive a parent that was killed.
    for lock in list(_held):
        lock.release()


os.register_at_fork(after_in_child=_forget_in_child)
