"""The files of the clients' private states: ``clients/<id>/<position>.safetensors``, one client a file."""

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from manyheads.contract.records import PrivateState
from manyheads.errors import RunError
from manyheads.storage import atomic
from manyheads.storage.log import Stamp, stamp

_OURS = re.compile(r"\.?(\d+|next)\.safetensors(\.tmp)?")


class DamagedError(Exception):
    """A file of a checkpoint is missing or is not what was written; the message says which one."""


class Version(NamedTuple):
    """A client's file as of some commit."""

    position: int
    stamp: Stamp


class ClientFiles:
    """Two layers: ``current`` is what the last commit refers to, over it lie the states that were set since ("staged").

    Args:
        root: the folder ``clients/``; it must exist.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.current: dict[int, Version] = {}
        self._staged: dict[int, Stamp] = {}

    def path(self, client: int, position: int | None) -> Path:
        """The file of a committed version, or of the staged one (None)."""
        return self.root / str(client) / ("next.safetensors" if position is None else f"{position}.safetensors")

    def clients(self) -> list[int]:
        """Every client with a state, ascending."""
        return sorted(self.current.keys() | self._staged.keys())

    def stage(self, client: int, data: bytes) -> None:
        """Set the bytes of a client's next version."""
        path = self.path(client, None)
        with atomic.one_line(f"{path} cannot be written", RunError):
            path.parent.mkdir(exist_ok=True)  # made durable by ``promote``
            atomic.write_unsynced(path, data)
        self._staged[client] = stamp(data)

    def read(self, client: int) -> bytes | None:
        """A client's newest bytes, staged or committed; None when it has none.

        Raises:
            RunError: the file was damaged since it was checked.
        """
        if client in self._staged:
            path, expected = self.path(client, None), self._staged[client]
        elif client in self.current:
            path, expected = self.path(client, self.current[client].position), self.current[client].stamp
        else:
            return None
        try:
            return read_stamped(path, expected)
        except DamagedError as error:
            raise RunError(f"{error}; it was changed from outside during the run") from None

    def promote(self, clients: Iterable[int], position: int) -> dict[int, Version]:
        """Turn staged files into durable versions, which go into ``current`` once a manifest refers to them."""
        versions = {client: Version(position, self._staged[client]) for client in sorted(clients)}
        for client in versions:
            atomic.sync(self.path(client, None))
            atomic.rename(self.path(client, None), self.path(client, position))
        # Folders last: the first sync writes all the renames in one go, the others find little left to do.
        for client in versions:
            atomic.sync_folder(self.root / str(client))
        if versions:
            atomic.sync_folder(self.root)
        for client in versions:
            del self._staged[client]
        return versions

    def check(self, versions: Mapping[int, Version]) -> None:
        """Read and verify every file.

        Done for all clients when a run is resumed, not when a state is first used: only then can the run still go back
        to the checkpoint before, instead of failing rounds later. Sizes alone would miss a block that a disk lost.
        10,000 files of 40 kB took 1 s from the system's memory and 5 s from disk, with threads as well.

        Raises:
            DamagedError: one is not as it was written.
        """
        for client, version in versions.items():
            read_stamped(self.path(client, version.position), version.stamp)

    def reset(self, current: dict[int, Version], also: Iterable[tuple[int, Version]] = ()) -> None:
        """Make ``current`` the state, and remove every file that neither it nor ``also`` refers to."""
        self.current = current
        self._staged = {}
        wanted = {self.path(client, version.position) for client, version in [*current.items(), *also]}
        for folder in self.root.iterdir():
            if folder.name.isdecimal() and folder.is_dir():
                for file in folder.iterdir():
                    if file not in wanted and _OURS.fullmatch(file.name):
                        atomic.remove(file)


class LazyStates(Mapping[int, PrivateState]):
    """The newest private states of some clients, each read from disk when it is asked for."""

    def __init__(self, files: ClientFiles, clients: Iterable[int]) -> None:
        self.files = files
        self._clients = dict.fromkeys(sorted(clients))

    def __getitem__(self, client: int) -> PrivateState:
        data = self.files.read(client) if client in self._clients else None
        if data is None:
            raise KeyError(client)
        return PrivateState.from_bytes(data)

    def __iter__(self) -> Iterator[int]:
        return iter(self._clients)

    def __len__(self) -> int:
        return len(self._clients)


def read_stamped(path: Path, expected: Stamp) -> bytes:
    """A file's bytes.

    Raises:
        DamagedError: it is missing, or has other bytes than when it was written.
        PermissionError: it may not be read, which is no damage.
    """
    try:
        data = path.read_bytes()
    except PermissionError:
        raise
    except OSError as error:
        raise DamagedError(f"{path} cannot be read: {error.strerror}") from None
    if not expected.fits(data):
        raise DamagedError(
            f"{path} is damaged: {len(data)} bytes that do not match the checksum of the {expected.size} written"
        )
    return data
