"""The file that makes a checkpoint: once it has its name, the commit has happened."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from manyheads.errors import InputError
from manyheads.storage.client_files import DamagedError, Version
from manyheads.storage.log import Stamp, stamp

FORMAT = 1


@dataclass(frozen=True)
class Manifest:
    """What a checkpoint consists of.

    Attributes:
        position: the number of the commit, from 0.
        server: the file ``checkpoints/<position>.safetensors``.
        rounds: how ``rounds.jsonl`` begins.
        clients: how ``clients/index.jsonl`` begins: one line a commit with the versions that it added. A list of every
            client's version in every manifest would make a round cost more the more clients there are.
        extra: whatever else the experiment wants back, as JSON.
    """

    position: int
    server: Stamp
    rounds: Stamp
    clients: Stamp
    extra: dict[str, Any]

    def to_bytes(self) -> bytes:
        """JSON with a checksum of the rest."""
        body = {"format": FORMAT, **vars(self)}
        return json.dumps({**body, "sha256": stamp(json.dumps(body).encode()).sha256}, indent=1).encode() + b"\n"

    @staticmethod
    def read(path: Path) -> "Manifest":
        """Read a manifest.

        Raises:
            DamagedError: it is not as it was written.
            InputError: a newer version of manyheads wrote it.
        """
        try:
            body = json.loads(path.read_bytes())
            checksum = body.pop("sha256")
        except PermissionError:
            raise
        except (OSError, ValueError, KeyError, AttributeError, TypeError):
            raise DamagedError(f"{path} cannot be read") from None
        # The order of keys survives JSON, so the same text comes out again.
        if stamp(json.dumps(body).encode()).sha256 != checksum:
            raise DamagedError(f"{path} does not match its checksum")
        if (found := body.pop("format")) != FORMAT:
            raise InputError(
                f"{path} has format {found}, this version of manyheads reads format {FORMAT}; use the one that wrote it"
            )
        stamps = {name: Stamp(*body.pop(name)) for name in ("server", "rounds", "clients")}
        return Manifest(position=body["position"], extra=body["extra"], **stamps)


def index_line(position: int, versions: dict[int, Version]) -> str:
    """The line of ``clients/index.jsonl`` that says which versions a commit added."""
    return json.dumps(
        {"position": position, "clients": {client: version.stamp for client, version in versions.items()}}
    )


def parse_index(data: bytes) -> dict[int, Version]:
    """Every client's newest version after the lines of ``data``."""
    versions: dict[int, Version] = {}
    for line in data.splitlines():
        added = json.loads(line)
        versions |= {
            int(client): Version(added["position"], Stamp(*values)) for client, values in added["clients"].items()
        }
    return versions
