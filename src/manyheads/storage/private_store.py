"""The clients' private states between rounds, in memory or on disk, behind one interface."""

from __future__ import annotations

import json
import math
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from manyheads.contract.records import PrivateState
from manyheads.errors import RunError
from manyheads.storage import atomic
from manyheads.storage.log import DamagedError, Log, Stamp, read_stamped, stamp

_OURS = re.compile(r"\.?(\d+|next)\.safetensors(\.tmp)?")


Facts = dict[str, Any]
"""What the server knows of a client besides, as JSON."""


class PrivateStore(Protocol):
    """A client's private state by client id, and what the server knows of the client."""

    def get(self, client: int, /) -> PrivateState | None:
        """The state that was put last, the restored one, or None for a client that never took part."""
        ...

    def put(self, client: int, state: PrivateState) -> None:
        """Set a client's state."""
        ...

    def facts(self, client: int) -> Facts:
        """What was noted last of a client, a copy; empty where nothing was."""
        ...

    def note(self, client: int, facts: Facts) -> None:
        """Set what is known of a client."""
        ...

    def known(self) -> list[int]:
        """The clients of which something was noted, ascending."""
        ...


class _Notes:
    """Facts by client, each a line of JSON: as dictionaries they would take five times the memory."""

    def __init__(self) -> None:
        self._lines: dict[int, str] = {}

    def facts(self, client: int) -> Facts:
        """See ``PrivateStore``."""
        return dict(json.loads(self._lines.get(client, "{}")))

    def note(self, client: int, facts: Facts) -> None:
        """See ``PrivateStore``."""
        self._lines[client] = json.dumps(facts)

    def known(self) -> list[int]:
        """See ``PrivateStore``."""
        return sorted(self._lines)


class MemoryStore(_Notes, Mapping[int, PrivateState]):
    """For a run that is not kept: private states in memory as long as they are few, others in a temporary folder.

    Args:
        limit: bytes of states in memory.
    """

    def __init__(self, limit: int = 16_000_000) -> None:
        super().__init__()
        self._room = limit
        self._states: dict[int, PrivateState] = {}
        self._folder: tempfile.TemporaryDirectory[str] | None = None  # goes with the last reference to this store
        self._others: DiskStore | None = None

    def __contains__(self, client: object) -> bool:
        return client in self._states or (self._others is not None and client in self._others)

    def __getitem__(self, client: int) -> PrivateState:
        return self._states[client] if self._others is None or client in self._states else self._others[client]

    def __iter__(self) -> Iterator[int]:
        return iter(sorted({*self._states, *(self._others or ())}))

    def __len__(self) -> int:
        return len(self._states) + len(self._others or ())

    def put(self, client: int, state: PrivateState) -> None:
        """See ``PrivateStore``."""
        if self._others is None or client not in self._others:
            self._room += _size(self._states.pop(client, None)) - _size(state)
            if self._room >= 0:
                self._states[client] = state
                return
            self._room += _size(state)
        self._on_disk().put(client, state)

    def _on_disk(self) -> DiskStore:
        if self._others is None:
            with atomic.one_line("no temporary folder can be made for what clients keep", RunError):
                self._folder = tempfile.TemporaryDirectory(prefix="manyheads-")
            self._others = DiskStore(Path(self._folder.name))
        return self._others


def _size(state: PrivateState | None) -> int:
    return sum(tensor.nbytes for tensor in state.tensors().values()) if state else 0


class States(Mapping[int, PrivateState]):
    """The private states of these clients, read from a store when they are asked for."""

    def __init__(self, store: PrivateStore, clients: Iterable[int]) -> None:
        self._store, self._clients = store, dict.fromkeys(clients)

    def __contains__(self, client: object) -> bool:
        return client in self._clients

    def __getitem__(self, client: int) -> PrivateState:
        state = self._store.get(client) if client in self._clients else None
        if state is None:
            raise KeyError(client)
        return state

    def __iter__(self) -> Iterator[int]:
        return iter(self._clients)

    def __len__(self) -> int:
        return len(self._clients)


class Version(NamedTuple):
    """A client's file as of some commit."""

    position: int
    stamp: Stamp


class DiskStore(_Notes, Mapping[int, PrivateState]):
    """Private states in files, ``<client>/<position>.safetensors``; may be used from several threads.

    A state that is put lies in ``next.safetensors`` until the next commit, which only costs what was put since the last
    one: ``index.jsonl`` says which commit added which files, and noted what. A list of every client's file in every
    manifest would make a round cost more the more clients there are. No state is kept in memory: the operating system
    does that better.

    Args:
        root: the folder ``clients/`` of a run, or any empty folder for a run that is not kept.
    """

    def __init__(self, root: Path) -> None:
        super().__init__()
        self.root = root
        self.index = Log(root / "index.jsonl")
        self._committed: dict[int, Version] = {}
        self._replaced: dict[int, Version] = {}  # by the last commit; only the checkpoint before it needs them
        self._staged: dict[int, Stamp] = {}  # put since the last commit
        self._noted: set[int] = set()  # likewise

    def __contains__(self, client: object) -> bool:
        """Without a look at the file, which ``Mapping`` would read."""
        return client in self._staged or client in self._committed

    def __getitem__(self, client: int) -> PrivateState:
        """The state that was put last, or the restored one; RunError where its file was damaged during the run."""
        if client in self._staged:
            path, expected = self._path(client), self._staged[client]
        else:
            version = self._committed[client]
            path, expected = self._path(client, version.position), version.stamp
        try:
            return PrivateState.from_bytes(read_stamped(path, expected))
        except DamagedError as error:
            raise RunError(f"{error}; it was changed from outside during the run") from None

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self._committed.keys() | self._staged.keys()))

    def __len__(self) -> int:
        return len(self._committed.keys() | self._staged.keys())

    def put(self, client: int, state: PrivateState) -> None:
        """Set a client's state, which goes to disk at once and becomes part of the run with the next commit."""
        data, path = state.to_bytes(), self._path(client)
        with atomic.one_line(f"{path} cannot be written", RunError):
            path.parent.mkdir(exist_ok=True)  # made durable by ``prepare``
            atomic.write_unsynced(path, data)
        self._staged[client] = stamp(data)

    def note(self, client: int, facts: Facts) -> None:
        """See ``PrivateStore``; becomes part of the run with the next commit."""
        super().note(client, facts)
        self._noted.add(client)

    def prepare(self, position: int) -> Stamp:
        """Make what was put durable, under names that no manifest refers to yet; returns the index's stamp for one."""
        changed = sorted(self._staged)
        for client in changed:
            atomic.sync(self._path(client))
            atomic.rename(self._path(client), self._path(client, position))
        # Folders last: the first sync writes all the renames in one go, the others find little left to do.
        for client in changed:
            atomic.sync_folder(self.root / str(client))
        if changed:
            atomic.sync_folder(self.root)
        if changed or self._noted:
            added = {client: self._staged[client] for client in changed}
            facts = {client: self.facts(client) for client in sorted(self._noted)}
            self.index.append({"position": position, "clients": added, "facts": facts})
        return self.index.sync()

    def finish(self, position: int) -> None:
        """After commit ``position``: remove what its checkpoint and the one before do not need."""
        for client, version in self._replaced.items():
            atomic.remove(self._path(client, version.position))
        added = {client: Version(position, written) for client, written in self._staged.items()}
        self._replaced = {client: self._committed[client] for client in added if client in self._committed}
        self._committed |= added
        self._staged, self._noted = {}, set()

    def check(self, expected: Stamp) -> bytes:
        """Read and verify the index with this stamp and every file that it names.

        Done for all clients when a run is resumed, not when a state is first used: only then can the run still go back
        to the checkpoint before, instead of failing rounds later. Sizes alone would miss a block that a disk lost.
        10,000 files of 40 kB took 1 s from the system's memory and 5 s from disk, with threads as well.

        Raises:
            DamagedError: one is not as it was written.
        """
        index = read_stamped(self.index.path, expected, grows=True)
        for client, version in _versions(index).items():
            read_stamped(self._path(client, version.position), version.stamp)
        return index

    def reset(self, index: bytes, position: int) -> None:
        """Go back to commit ``position``, which had this index; of other files, keep what the one before it needs."""
        self._committed, before = _versions(index), _versions(index, position - 1)
        self._replaced = {client: old for client, old in before.items() if self._committed[client] != old}
        self._staged, self._noted = {}, set()
        self._lines = {}
        for line in map(json.loads, index.splitlines()):
            for client, facts in line["facts"].items():
                super().note(int(client), facts)
        versions = [*self._committed.items(), *self._replaced.items()]
        wanted = {self._path(client, version.position) for client, version in versions}
        for file in self.root.glob("*/*"):
            if file.parent.name.isdecimal() and _OURS.fullmatch(file.name) and file not in wanted:
                atomic.remove(file)
        self.index.cut(index)

    def _path(self, client: int, position: int | str = "next") -> Path:
        return self.root / str(client) / f"{position}.safetensors"


def _versions(index: bytes, last: float = math.inf) -> dict[int, Version]:
    """Every client's newest version after commit ``last``."""
    versions: dict[int, Version] = {}
    for line in map(json.loads, index.splitlines()):
        if line["position"] <= last:
            added = {
                int(client): Version(line["position"], Stamp(*written)) for client, written in line["clients"].items()
            }
            versions |= added
    return versions
