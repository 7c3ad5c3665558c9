"""Commits: every one leaves a whole state of the run behind, or the one before it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from manyheads.contract.records import PrivateState, ServerState
from manyheads.errors import RunError
from manyheads.storage import atomic
from manyheads.storage.client_files import ClientFiles, DamagedError, LazyStates, Version, read_stamped
from manyheads.storage.log import Log, stamp
from manyheads.storage.manifest import Manifest, index_line, parse_index

_OURS = re.compile(r"\.?\d+\.(json|safetensors)(\.tmp)?")


@dataclass(frozen=True)
class Restored:
    """A run as of its newest intact checkpoint.

    Attributes:
        position: the number of that commit, from 0.
        server: the server state.
        private: the private states of the clients that have one, read when asked for. Valid until the next commit.
        extra: as it was given to ``commit``, after a trip through JSON.
        warnings: one line for each damaged checkpoint that was passed over, naming the file.
    """

    position: int
    server: ServerState
    private: Mapping[int, PrivateState]
    extra: dict[str, Any]
    warnings: list[str]


class Checkpoints:
    """The last two checkpoints of the run in folder ``path``, and the files that they refer to.

    A commit first makes durable what the checkpoint consists of, under names that no manifest mentions yet; then the
    manifest gets its name, which is the commit; then what the two newest checkpoints do not need is removed.
    ``restore`` trusts nothing but manifests.
    """

    def __init__(self, path: Path) -> None:
        self.folder = path / "checkpoints"
        self.rounds = Log(path / "rounds.jsonl")
        self.clients = ClientFiles(path / "clients")
        self.index = Log(path / "clients" / "index.jsonl")
        self._superseded: dict[int, Version] = {}  # what only the checkpoint before the newest one needs

    def make(self) -> None:
        """Make the empty files and folders of a new run."""
        for folder in (self.folder, self.clients.root):
            atomic.make_folder(folder)
        for log in (self.rounds, self.index):
            log.cut(b"")

    def commit(
        self, position: int, server: ServerState, private: Mapping[int, PrivateState], extra: Mapping[str, Any]
    ) -> None:
        """See ``RunFolder.commit``. After any exception, ``restore`` must come next."""
        if not (isinstance(private, LazyStates) and private.files is self.clients):  # those lie in their files already
            for client, state in private.items():
                self.clients.stage(client, state.to_bytes())
        versions = self.clients.promote(private, position)
        data = server.to_bytes()
        atomic.write_bytes(self._server(position), data)
        if versions:
            self.index.append(index_line(position, versions))
        manifest = Manifest(position, stamp(data), self.rounds.sync(), self.index.sync(), dict(extra))
        atomic.write_bytes(self._manifest(position), manifest.to_bytes())  # the commit
        self._remove_old(position)
        current = self.clients.current
        self._superseded = {client: current[client] for client in versions if client in current}
        current.update(versions)

    def restore(self) -> Restored | None:
        """See ``RunFolder.restore``."""
        if not self.folder.is_dir():
            raise RunError(f"{self.folder.parent} cannot be resumed: there is no folder {self.folder}")
        # A process may have been killed between a manifest's rename and the sync; from here on, we rely on it.
        atomic.sync_folder(self.folder)
        manifests = [int(file.stem) for file in self.folder.glob("*.json") if file.stem.isdecimal()]
        if not manifests:
            self._settle_empty()
            return None
        damages: list[str] = []
        for position in sorted(manifests, reverse=True):
            try:
                manifest, server, rounds, index = self._check(position)
            except DamagedError as error:
                damages.append(f"checkpoint {position} is damaged ({error})")
                continue
            self._settle(manifest, rounds, index)
            warnings = [f"{damage}; the run goes on from checkpoint {position}" for damage in damages]
            private = LazyStates(self.clients, self.clients.clients())
            return Restored(position, server, private, manifest.extra, warnings)
        raise RunError(f"{self.folder.parent} cannot be resumed: {'; '.join(damages)}")

    def _check(self, position: int) -> tuple[Manifest, ServerState, bytes, bytes]:
        manifest = Manifest.read(self._manifest(position))
        server = read_stamped(self._server(position), manifest.server)
        rounds, index = self.rounds.beginning(manifest.rounds), self.index.beginning(manifest.clients)
        if rounds is None or index is None:
            damaged = self.rounds if rounds is None else self.index
            raise DamagedError(f"{damaged.path} is shorter than it was, or does not match its checksum")
        self.clients.check(parse_index(index))
        return manifest, ServerState.from_bytes(server), rounds, index

    def _settle(self, manifest: Manifest, rounds: bytes, index: bytes) -> None:
        position, current = manifest.position, parse_index(index)
        self._superseded, kept = {}, {position}
        try:
            before = self.index.beginning(Manifest.read(self._manifest(position - 1)).clients)
        except DamagedError:
            before = None
        if before is not None:
            kept.add(position - 1)
            self._superseded = {client: old for client, old in parse_index(before).items() if current[client] != old}
        self._keep_only(kept)
        self.rounds.cut(rounds)
        self.index.cut(index)
        self.clients.reset(current, self._superseded.items())

    def _settle_empty(self) -> None:
        # Only the first commit has no manifest before it. A later one's server file says that manifests were lost.
        if any(file.stem.isdecimal() and int(file.stem) > 0 for file in self.folder.glob("*.safetensors")):
            raise RunError(f"{self.folder.parent} cannot be resumed: {self.folder} holds server states but no manifest")
        self._superseded = {}
        self._keep_only(set())
        for log in (self.rounds, self.index):
            log.cut(b"")
        self.clients.reset({})

    def _remove_old(self, position: int) -> None:
        # Nothing refers to these any more: order and durability do not matter, and restore removes what is left over.
        for path in (self._manifest(position - 2), self._server(position - 2)):
            atomic.remove(path)
        for client, version in self._superseded.items():
            atomic.remove(self.clients.path(client, version.position))

    def _keep_only(self, positions: set[int]) -> None:
        names = {path.name for position in positions for path in (self._manifest(position), self._server(position))}
        gone = [file for file in self.folder.iterdir() if _OURS.fullmatch(file.name) and file.name not in names]
        for file in gone:  # in any order: a newer manifest among them is damaged, and stays so without its files
            atomic.remove(file)
        atomic.sync_folder(self.folder)

    def _server(self, position: int) -> Path:
        return self.folder / f"{position}.safetensors"

    def _manifest(self, position: int) -> Path:
        return self.folder / f"{position}.json"
