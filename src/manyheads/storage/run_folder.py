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

from manyheads.contract.records import PrivateState, ServerState
from manyheads.errors import InputError, RunError
from manyheads.storage import atomic
from manyheads.storage.checkpoints import Checkpoints, Restored
from manyheads.storage.claim import CONFIG, LOCK, refuse_taken
from manyheads.storage.lock import Lock
from manyheads.storage.private_store import MEMORY, DiskStore

__all__ = ["Restored", "RunFolder"]


class RunFolder:
    """A run's folder, locked against other processes until ``close``; also a context manager.

    Made by ``create`` or ``open``. After ``open``, and after anything has failed, ``restore`` comes first.
    """

    def __init__(self, path: Path, lock: Lock | None) -> None:
        self.path = path
        self._lock = lock
        self._checkpoints = Checkpoints(path)
        self._position: int | None = None  # of the last commit; -1: none yet; None: not known, restore first

    @classmethod
    def create(
        cls, path: Path, config: str, *, partition: bytes | Callable[[Path], None], data: Mapping[str, Any]
    ) -> Self:
        """Make a folder for a new run.

        Args:
            path: a folder that does not exist, is empty, or where an earlier ``create`` was interrupted.
            config: the resolved config, TOML.
            partition: the bytes of ``partition.safetensors``, or a function that writes that file.
            data: label counts and the like, JSON.

        Raises:
            InputError: the folder is taken, locked, or cannot be written.
        """
        path = Path(path)
        with _refused(path):
            atomic.make_folder(path)
            refuse_taken(path, config)
            folder = cls(path, Lock(path / LOCK))
            try:
                refuse_taken(path, config)  # again: another process may have been faster
                folder._fill(config, partition, data)
            except BaseException:
                folder.close()
                raise
        return folder

    def _fill(self, config: str, partition: bytes | Callable[[Path], None], data: Mapping[str, Any]) -> None:
        self._checkpoints.make()
        if isinstance(partition, bytes):
            atomic.write_bytes(self.partition_path, partition)
        else:
            partition(self.partition_path)
            atomic.sync(self.partition_path)
        atomic.write_bytes(self.path / "data.json", json.dumps(data).encode() + b"\n")
        atomic.write_bytes(self.path / CONFIG, config.encode())
        self._position = -1

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
            return cls(path, Lock(path / LOCK) if write else None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the lock; what was not committed is lost."""
        self._position = None
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    @property
    def config(self) -> str:
        """The text of ``config.toml``; InputError where it is damaged."""
        return self._read(CONFIG)

    @property
    def partition_path(self) -> Path:
        """The file of the partition."""
        return self.path / "partition.safetensors"

    @property
    def data(self) -> dict[str, Any]:
        """What ``data.json`` holds; InputError where it is damaged."""
        try:
            loaded: dict[str, Any] = json.loads(self._read("data.json"))
        except ValueError as error:
            raise InputError(f"{self.path / 'data.json'} is damaged: {error}") from None
        return loaded

    def _read(self, name: str) -> str:
        with atomic.one_line(f"{self.path / name} cannot be read", InputError):
            try:
                return (self.path / name).read_bytes().decode()
            except UnicodeDecodeError:
                raise InputError(f"{self.path / name} is damaged: it is not UTF-8") from None

    def rows(self) -> list[dict[str, Any]]:
        """The lines of ``rounds.jsonl``, except a last one that is not complete.

        Raises:
            RunError: a line is damaged.
        """
        path = self._checkpoints.rounds.path
        try:
            *lines, _ = path.read_bytes().split(b"\n")
            return [json.loads(line) for line in lines]
        except FileNotFoundError:
            return []
        except ValueError as error:
            raise RunError(f"{path} has a damaged line: {error}") from None

    def store(self, memory: int = MEMORY) -> DiskStore:
        """The private states in this folder as a store: the restored ones, and those that are put into it later.

        Args:
            memory: how many bytes of states to keep in memory besides.
        """
        self._ready()
        return DiskStore(self._checkpoints.clients, memory)

    def append(self, row: Mapping[str, Any]) -> None:
        """Add a line to ``rounds.jsonl``; it becomes part of the run with the next commit.

        Raises:
            RunError: it cannot be written, such as on a full disk.
        """
        line = json.dumps(row)
        with self._writing():
            self._checkpoints.rounds.append(line)

    def commit(
        self, position: int, server: ServerState, private: Mapping[int, PrivateState], extra: Mapping[str, Any]
    ) -> None:
        """Make the appended rows, these states and ``extra`` the state of the run: all of it or nothing.

        The cost follows what changed, not how many clients or rounds there are.

        Args:
            position: 0 for the first commit, then one more each time.
            server: the server state.
            private: the private states that changed since the last commit: ``drain_changed()`` of a store.
            extra: JSON.

        Raises:
            RunError: it cannot be written, such as on a full disk; the run is then as of the commit before.
        """
        last = self._ready()
        if position != last + 1:
            raise ValueError(f"commit {position} after commit {last}")
        with self._writing():
            self._checkpoints.commit(position, server, private, extra)
        self._position = position

    def restore(self) -> Restored | None:
        """Go to the newest intact checkpoint and remove whatever is newer; None when nothing was committed yet.

        It may itself be killed at any instant and called again. Stores from before it are void.

        Raises:
            RunError: there are checkpoints, but every one of them is damaged. Nothing is removed then.
            InputError: a newer version of manyheads wrote them.
        """
        if self._lock is None:
            raise RuntimeError("the folder is not open for writing")
        self._position = -1
        with self._writing(""):
            restored = self._checkpoints.restore()
        self._position = restored.position if restored else -1
        return restored

    def _ready(self) -> int:
        if self._position is None:
            raise RuntimeError("call restore() first")
        return self._position

    @contextmanager
    def _writing(
        self, safe: str = "; the last stored round is safe, continue with: manyheads resume "
    ) -> Iterator[None]:
        position, self._position = self._ready(), None  # should it fail halfway, what is on disk is not known
        advice = safe and safe + str(self.path)
        with atomic.one_line(f"{self.path} cannot be read or written", RunError, advice):
            yield
        self._position = position


@contextmanager
def _refused(path: Path) -> Iterator[None]:
    with atomic.one_line(f"{path} cannot be used as a run's folder", InputError, "; choose another --folder"):
        yield
