"""The folder of a run: what was asked for, what came out, and everything that is needed to go on after a kill.

::

    config.toml             resolved; written last, so that its presence marks a whole folder
    partition.safetensors   which client has which images
    data.json               label counts
    rounds.jsonl            one line an evaluation or round
    checkpoints/            the last two: <position>.safetensors (server state) and <position>.json (manifest)
    clients/                <id>/<position>.safetensors (private state), index.jsonl (which commit added which)
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from manyheads.contract.records import ServerState
from manyheads.errors import InputError, RunError
from manyheads.storage import atomic, lock
from manyheads.storage.checkpoints import Checkpoints, Restored
from manyheads.storage.claim import CONFIG, LOCK, refuse_taken
from manyheads.storage.log import read_rows
from manyheads.storage.private_store import DiskStore

__all__ = ["Restored", "RunFolder"]


class RunFolder:
    """A run's folder, locked against other processes until ``close``; also a context manager.

    Made by ``create`` or ``open``. After ``open``, and after anything has failed, ``restore`` comes first.
    """

    def __init__(self, path: Path, descriptor: int | None) -> None:
        self.path = path  # as it was given: for messages
        self._lock = descriptor
        self._checkpoints = Checkpoints(path.absolute(), path)  # read later too, whatever folder the process is in then
        self._position: int | None = None  # of the last commit; -1: none yet; None: not known, restore first

    @classmethod
    def create(cls, path: Path, config: str, *, partition: Callable[[Path], object], data: Mapping[str, Any]) -> Self:
        """Make a folder for a new run.

        Args:
            path: a folder that does not exist, is empty, or where an earlier ``create`` was interrupted.
            config: the resolved config, TOML.
            partition: writes ``partition.safetensors``.
            data: label counts and the like, JSON.

        Raises:
            InputError: the folder is taken, locked, or cannot be written.
        """
        path = Path(path)
        with _refused(path):
            atomic.make_folder(path)
            refuse_taken(path, config)
            folder = cls(path, lock.acquire(path / LOCK))
            try:
                refuse_taken(path, config)  # again: another process may have been faster
                folder._checkpoints.make()
                partition(folder.partition_path)
                atomic.sync(folder.partition_path)
                atomic.write_bytes(path / "data.json", json.dumps(data).encode() + b"\n")
                atomic.write_bytes(path / CONFIG, config.encode())
            except BaseException:
                folder.close()
                raise
            folder._position = -1
        return folder

    @classmethod
    def open(cls, path: Path, *, write: bool = True) -> Self:
        """Open a run's folder.

        Args:
            path: the folder.
            write: False only to look at it, also while a process is running in it: nothing is locked or written.

        Raises:
            InputError: it holds no run, another process is running in it, or it cannot be written.
        """
        path = Path(path)
        with _refused(path):
            if not path.is_dir():
                raise InputError(f"there is no folder {path}")
            if not (path / CONFIG).is_file():
                raise InputError(f"{path} holds no run: there is no {CONFIG} in it")
            return cls(path, lock.acquire(path / LOCK) if write else None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the lock; what was not committed is lost."""
        self._position = None
        if self._lock is not None:
            lock.release(self._lock)
            self._lock = None

    @property
    def config(self) -> str:
        """The text of ``config.toml``; InputError where it is damaged."""
        with _readable(self.path / CONFIG):
            return (self.path / CONFIG).read_bytes().decode()

    @property
    def partition_path(self) -> Path:
        """The file of the partition."""
        return self.path / "partition.safetensors"

    @property
    def data(self) -> dict[str, Any]:
        """What ``data.json`` holds; InputError where it is damaged."""
        with _readable(self.path / "data.json"):
            return dict(json.loads((self.path / "data.json").read_bytes()))

    def rows(self) -> list[dict[str, Any]]:
        """The lines of ``rounds.jsonl``, except a last one that is not complete; InputError where one is damaged."""
        if not self._checkpoints.rounds.path.exists():  # it is made with the folder
            raise InputError(f"{self.path} is gone: the rows of this run can no longer be read")
        return read_rows(self._checkpoints.rounds.path)

    def store(self) -> DiskStore:
        """The private states in this folder: the restored ones, and those that are put there for the next commit."""
        self._ready()
        return self._checkpoints.store

    def append(self, row: Mapping[str, Any]) -> None:
        """Add a line to ``rounds.jsonl``; it becomes part of the run with the next commit.

        Raises:
            RunError: it cannot be written, such as on a full disk.
        """
        with self._writing():
            self._checkpoints.rounds.append(row)

    def commit(self, position: int, server: ServerState, extra: Mapping[str, Any]) -> None:
        """Make the rows appended, the private states put in ``store()`` and these values the state of the run.

        All of it or nothing. The cost follows what changed, not how many clients or rounds there are.

        Args:
            position: 0 for the first commit, then one more each time.
            server: the server state.
            extra: JSON.

        Raises:
            RunError: it cannot be written, such as on a full disk; the run is then as of the commit before.
        """
        if position != (last := self._ready()) + 1:
            raise ValueError(f"commit {position} after commit {last}")
        with self._writing():
            self._checkpoints.commit(position, server, extra)
        self._position = position

    def restore(self) -> Restored | None:
        """Go to the newest intact checkpoint and remove whatever is newer; None when nothing was committed yet.

        It may itself be killed at any instant and called again. A state that was put since then is gone from the store.

        Raises:
            RunError: there are checkpoints, but every one of them is damaged. Nothing is removed then.
            InputError: another version of manyheads wrote them, in another format.
        """
        if self._lock is None:
            raise RuntimeError("the folder is not open for writing")
        self._position = None
        with atomic.one_line(f"{self.path} cannot be read or written", RunError):
            restored = self._checkpoints.restore()
        self._position = restored.position if restored else -1
        return restored

    def _ready(self) -> int:
        if self._position is None:
            raise RuntimeError("call restore() first")
        return self._position

    @contextmanager
    def _writing(self) -> Iterator[None]:
        position, self._position = self._ready(), None  # should it fail halfway, what is on disk is not known
        advice = f"; the last stored round is safe, continue with: manyheads resume {self.path}"
        with atomic.one_line(f"{self.path} cannot be read or written", RunError, advice):
            yield
        self._position = position


@contextmanager
def _refused(path: Path) -> Iterator[None]:
    with atomic.one_line(f"{path} cannot be used as a run's folder", InputError, "; choose another --folder"):
        yield


@contextmanager
def _readable(file: Path) -> Iterator[None]:
    with atomic.one_line(f"{file} cannot be read", InputError):
        try:
            yield
        except ValueError as error:
            raise InputError(f"{file} is damaged: {error}") from None
