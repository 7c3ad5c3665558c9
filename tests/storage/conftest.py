"""A small run whose state after every commit is known, for the tests of what survives."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from manyheads.contract.records import PrivateState, ServerState
from manyheads.contract.tree import Tree
from manyheads.storage import atomic
from manyheads.storage.private_store import DiskStore
from manyheads.storage.run_folder import RunFolder

CONFIG = '[train]\nrounds = 5\nlr = 0.1\n[algorithm]\nname = "fedper"\n'
CLIENTS = 6


class Toy:
    """Each round, two of six clients add the round to their private state; a mix of two rounds shows in the sums."""

    config = CONFIG
    clients = CLIENTS
    _whole: ClassVar[dict[int, dict[str, bytes]]] = {}

    def create(self, path: Path, config: str = CONFIG) -> RunFolder:
        return RunFolder.create(
            path, config, partition=lambda file: file.write_bytes(b"indices"), data={"counts": [1, 2]}
        )

    def cohort(self, position: int) -> list[int]:
        return sorted({position % CLIENTS, (position * position + 1) % CLIENTS}) if position else []

    def server(self, position: int) -> ServerState:
        return ServerState(model=Tree({"backbone.weight": torch.full((3, 2), position / 7)}), round=position)

    def private(self, client: int, position: int) -> PrivateState | None:
        taken = [p for p in range(1, position + 1) if client in self.cohort(p)]
        return self.state(client, float(sum(taken))) if taken else None

    def state(self, client: int, total: float) -> PrivateState:
        return PrivateState(model=Tree({"head.weight": torch.tensor([total, 1000.0 + client])}))

    def expected(self, position: int) -> dict[str, Any]:
        private = {client: state for client in range(CLIENTS) if (state := self.private(client, position))}
        rows = [{"round": p, "accuracy": p / 3} for p in range(position + 1)]
        return {
            "position": position,
            "server": self.server(position),
            "private": private,
            "facts": self.facts(position),
            "rows": rows,
            "extra": {"next": position + 1},
        }

    def facts(self, position: int) -> dict[int, dict[str, Any]]:
        """Of the clients of every round, and of the next one, whose state stays as it is, the last such round."""
        return {client: {"seen": p} for p in range(1, position + 1) for client in self.noted(p)}

    def noted(self, position: int) -> set[int]:
        return {*self.cohort(position), (position + 1) % CLIENTS} if position else set()

    def play_one(self, folder: RunFolder, store: DiskStore, position: int) -> None:
        for client in self.cohort(position):
            before = store.get(client)
            total = float(before.model["head.weight"][0]) if before else 0.0
            store.put(client, self.state(client, total + position))
        for client in self.noted(position):
            store.note(client, {"seen": position})
        folder.append({"round": position, "accuracy": position / 3})
        folder.commit(position, self.server(position), {"next": position + 1})

    def play(self, folder: RunFolder, last: int, first: int = 0) -> None:
        store = folder.store()
        for position in range(first, last + 1):
            self.play_one(folder, store, position)

    def finished(self, path: Path, last: int) -> Path:
        with self.create(path) as folder:
            self.play(folder, last)
        return path

    def restored(self, path: Path) -> tuple[dict[str, Any] | None, list[str]]:
        """The state of a run after ``restore``, in the form of ``expected``, and the warnings."""
        with RunFolder.open(path) as folder:
            restored = folder.restore()
            if restored is None:
                assert folder.rows() == []
                return None, []
            state = {
                "position": restored.position,
                "server": restored.server,
                "private": dict(restored.private),
                "facts": {client: folder.store().facts(client) for client in folder.store().known()},
                "rows": folder.rows(),
                "extra": restored.extra,
            }
            return state, restored.warnings

    def finish(self, path: Path, last: int) -> None:
        """Resume a run, play it to its end, and check that it is what an uninterrupted one is, to the last file."""
        with RunFolder.open(path) as folder:
            restored = folder.restore()
            self.play(folder, last, first=restored.position + 1 if restored else 0)
        state, warnings = self.restored(path)
        assert state == self.expected(last)
        assert warnings == []
        if last not in self._whole:
            whole = self.finished(path.with_name(path.name + "-whole"), last)
            self._whole[last] = self.files(whole)
            shutil.rmtree(whole)
        assert self.files(path) == self._whole[last]

    def files(self, path: Path) -> dict[str, bytes]:
        return {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


class Killed(BaseException):
    """Stands for SIGKILL: nothing in the package may catch it."""


class Steps:
    """Replaces the hook of the file operations."""

    def __init__(self, patch: Callable[[Callable[[str], None]], None]) -> None:
        self._patch = patch
        self.names: list[str] = []

    def record(self) -> None:
        self.names = []
        self._patch(self.names.append)

    def call(self, fn: Callable[[str], None]) -> None:
        self._patch(fn)

    def fail_at(self, number: int, error: BaseException) -> None:
        """Raise ``error`` at the step with this number, and at every later one: a killed process does nothing more."""
        count = iter(range(10**9))

        def step(name: str) -> None:
            if next(count) >= number:
                raise error

        self._patch(step)

    def stop(self) -> None:
        self._patch(lambda name: None)


@pytest.fixture(autouse=True, scope="session")
def fast_disk() -> Iterator[None]:
    """Nothing here can see whether bytes reached a disk, only in which order that is asked for; and waiting is long."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(scope="session")
def toy() -> Toy:
    return Toy()


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    return Steps(lambda fn: monkeypatch.setattr(atomic, "step", fn))


@pytest.fixture
def killed() -> type[BaseException]:
    return Killed
