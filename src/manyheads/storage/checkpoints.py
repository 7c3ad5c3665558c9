"""Commits: every one leaves a whole state of the run behind, or the one before it."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from manyheads.contract.records import PrivateState, ServerState
from manyheads.errors import InputError, RunError
from manyheads.storage import atomic
from manyheads.storage.log import DamagedError, Log, Stamp, read_bytes, read_stamped, stamp
from manyheads.storage.private_store import DiskStore

FORMAT = 2
_OURS = re.compile(r"\.?\d+\.(json|safetensors)(\.tmp)?")


@dataclass(frozen=True)
class Restored:
    """A run as of its newest intact checkpoint.

    Attributes:
        position: the number of that commit, from 0.
        server: the server state.
        private: the private states of the clients that have one: the run's store, so valid until the next ``put``.
        extra: as it was given to ``commit``, after a trip through JSON.
        warnings: one line for each damaged checkpoint that was passed over, naming the file.
    """

    position: int
    server: ServerState
    private: Mapping[int, PrivateState]
    extra: dict[str, Any]
    warnings: list[str]


class Manifest(NamedTuple):
    """What a checkpoint consists of; once its file has its name, the commit has happened.

    Attributes:
        position: the number of the commit, from 0.
        server: the file ``checkpoints/<position>.safetensors``.
        rounds: how ``rounds.jsonl`` begins.
        clients: how ``clients/index.jsonl`` begins.
        extra: whatever else the experiment wants back, as JSON.
    """

    position: int
    server: Stamp
    rounds: Stamp
    clients: Stamp
    extra: dict[str, Any]

    def to_bytes(self) -> bytes:
        """JSON with a checksum of the rest."""
        body = {"format": FORMAT, **self._asdict()}
        return json.dumps({**body, "sha256": _checksum(body)}, indent=1).encode() + b"\n"

    @staticmethod
    def read(path: Path) -> "Manifest":
        """Read a manifest.

        Raises:
            DamagedError: it is not as it was written.
            InputError: another version of manyheads wrote it, in another format.
        """
        try:
            body = json.loads(read_bytes(path))
            if body.pop("sha256") != _checksum(body):
                raise ValueError
        except (ValueError, KeyError, AttributeError, TypeError):
            raise DamagedError(f"{path} does not match its checksum") from None
        if (found := body.pop("format")) != FORMAT:
            raise InputError(
                f"{path} has format {found}, this version of manyheads reads format {FORMAT}; use the one that wrote it"
            )
        stamps = {name: Stamp(*body[name]) for name in ("server", "rounds", "clients")}
        return Manifest(**{**body, **stamps})


class Checkpoints:
    """The last two checkpoints of a run, and the files that they refer to.

    A commit first makes durable what the checkpoint consists of, under names that no manifest mentions yet; then the
    manifest gets its name, which is the commit; then what the two newest checkpoints do not need is removed.
    ``restore`` trusts nothing but manifests.

    Args:
        path: the run's folder.
        name: what messages call it.
    """

    def __init__(self, path: Path, name: Path) -> None:
        self._name = name
        self.folder = path / "checkpoints"
        self.rounds = Log(path / "rounds.jsonl")
        self.store = DiskStore(path / "clients")

    def make(self) -> None:
        """Make the empty files and folders of a new run."""
        for folder in (self.folder, self.store.root):
            atomic.make_folder(folder)
        for log in (self.rounds, self.store.index):
            log.cut(b"")
            atomic.sync_folder(log.path.parent)

    def commit(self, position: int, server: ServerState, extra: Mapping[str, Any]) -> None:
        """See ``RunFolder.commit``. After any exception, ``restore`` must come next."""
        data = server.to_bytes()
        clients = self.store.prepare(position)
        atomic.write_bytes(self._server(position), data)
        manifest = Manifest(position, stamp(data), self.rounds.sync(), clients, dict(extra))
        atomic.write_bytes(self._manifest(position), manifest.to_bytes())  # the commit
        # Nothing refers to these any more: order and durability do not matter, and restore removes what is left over.
        for path in (self._manifest(position - 2), self._server(position - 2)):
            atomic.remove(path)
        self.store.finish(position)

    def restore(self) -> Restored | None:
        """See ``RunFolder.restore``."""
        if not self.folder.is_dir():
            raise RunError(f"{self._name} cannot be resumed: there is no folder {self.folder}")
        # A process may have been killed between a manifest's rename and the sync; from here on, we rely on it.
        atomic.sync_folder(self.folder)
        damages: list[str] = []
        for position in sorted(self._positions("json"), reverse=True):
            try:
                manifest = Manifest.read(self._manifest(position))
                server = ServerState.from_bytes(read_stamped(self._server(position), manifest.server))
                rounds = read_stamped(self.rounds.path, manifest.rounds, grows=True)
                index = self.store.check(manifest.clients)
            except DamagedError as error:
                damages.append(f"checkpoint {position} is damaged ({error})")
                continue
            self._settle(position, rounds, index)
            warnings = [f"{damage}; the run goes on from checkpoint {position}" for damage in damages]
            return Restored(position, server, self.store, manifest.extra, warnings)
        # Only the first commit has no manifest before it. A later one's server file says that manifests were lost.
        if not damages and max(self._positions("safetensors"), default=0) > 0:
            damages.append(f"{self.folder} holds server states but no manifest")
        if damages:
            raise RunError(f"{self._name} cannot be resumed: {'; '.join(damages)}")
        self._settle(-1, b"", b"")
        return None

    def _settle(self, position: int, rounds: bytes, index: bytes) -> None:
        """Remove what is newer than commit ``position``, in any order: a newer manifest is damaged, and stays so."""
        kept = {path for number in (position - 1, position) for path in (self._manifest(number), self._server(number))}
        for file in self.folder.iterdir():
            if _OURS.fullmatch(file.name) and file not in kept:
                atomic.remove(file)
        atomic.sync_folder(self.folder)
        self.rounds.cut(rounds)
        self.store.reset(index, position)

    def _positions(self, kind: str) -> list[int]:
        return [int(file.stem) for file in self.folder.glob(f"*.{kind}") if file.stem.isdecimal()]

    def _server(self, position: int) -> Path:
        return self.folder / f"{position}.safetensors"

    def _manifest(self, position: int) -> Path:
        return self.folder / f"{position}.json"


def _checksum(body: dict[str, Any]) -> str:
    return stamp(json.dumps(body).encode()).sha256  # the order of keys survives JSON, so the same text comes out again
