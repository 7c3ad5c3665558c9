"""The clients' private states between rounds, in memory or on disk, behind one interface."""

from collections import OrderedDict
from collections.abc import Mapping
from threading import Lock
from typing import Protocol

from manyheads.contract.records import PrivateState
from manyheads.storage.client_files import ClientFiles, LazyStates

MEMORY = 64 << 20


class PrivateStore(Protocol):
    """A client's private state by client id."""

    def get(self, client: int) -> PrivateState | None:
        """The state that was put last, the restored one, or None for a client that never took part."""
        ...

    def put(self, client: int, state: PrivateState) -> None:
        """Set a client's state."""
        ...

    def clients(self) -> list[int]:
        """Every client with a state, ascending."""
        ...

    def drain_changed(self) -> Mapping[int, PrivateState]:
        """The states put since the last call, by ascending client, for a commit. Use it before the next ``put``."""
        ...


class MemoryStore:
    """Private states in memory.

    Args:
        states: those of a restored run.
    """

    def __init__(self, states: Mapping[int, PrivateState] | None = None) -> None:
        self._states = dict(states or {})
        self._changed: set[int] = set()

    def get(self, client: int) -> PrivateState | None:
        """See ``PrivateStore``."""
        return self._states.get(client)

    def put(self, client: int, state: PrivateState) -> None:
        """See ``PrivateStore``."""
        self._states[client] = state
        self._changed.add(client)

    def clients(self) -> list[int]:
        """See ``PrivateStore``."""
        return sorted(self._states)

    def drain_changed(self) -> Mapping[int, PrivateState]:
        """See ``PrivateStore``."""
        changed, self._changed = self._changed, set()
        return {client: self._states[client] for client in sorted(changed)}


class DiskStore:
    """Private states in files; may be used from several threads.

    Args:
        files: where they lie: in a run folder (``RunFolder.store`` gives that), or in any empty folder for a run that
            is not kept.
        memory: how many bytes of states to keep in memory besides, the most recently used ones.
    """

    def __init__(self, files: ClientFiles, memory: int = MEMORY) -> None:
        self._files = files
        self._memory = memory
        self._recent: OrderedDict[int, tuple[PrivateState, int]] = OrderedDict()
        self._used = 0
        self._changed: set[int] = set()
        self._lock = Lock()

    def get(self, client: int) -> PrivateState | None:
        """See ``PrivateStore``.

        Raises:
            RunError: the file was damaged during the run.
        """
        with self._lock:
            if client in self._recent:
                self._recent.move_to_end(client)
                return self._recent[client][0]
            data = self._files.read(client)
            if data is None:
                return None
            state = PrivateState.from_bytes(data)
            self._remember(client, state, len(data))
            return state

    def put(self, client: int, state: PrivateState) -> None:
        """See ``PrivateStore``. The state goes to disk at once, and becomes part of the run with the next commit."""
        data = state.to_bytes()
        with self._lock:
            self._files.stage(client, data)
            self._changed.add(client)
            self._remember(client, state, len(data))

    def clients(self) -> list[int]:
        """See ``PrivateStore``."""
        return self._files.clients()

    def drain_changed(self) -> Mapping[int, PrivateState]:
        """See ``PrivateStore``. Each state is read when it is used; a run folder takes over the files as they are."""
        changed, self._changed = self._changed, set()
        return LazyStates(self._files, changed)

    def _remember(self, client: int, state: PrivateState, size: int) -> None:
        self._used += size - self._recent.pop(client, (state, 0))[1]
        self._recent[client] = state, size
        while self._used > self._memory:
            self._used -= self._recent.popitem(last=False)[1][1]
