"""``Downlink``: counts what the server sends. A field that a client holds already is not sent again."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from manyheads.contract import Broadcast


class Downlink:
    """Measures broadcasts, as the bytes of the serialised message.

    Attributes:
        held: by client, the content hash of every field that it received last.
    """

    def __init__(self, held: Mapping[int, Mapping[str, str]] | None = None) -> None:
        self.held = {client: dict(fields) for client, fields in (held or {}).items()}
        self._hashes: dict[tuple[object, ...], str] = {}
        self._sizes: dict[tuple[object, ...], int] = {}
        self._alive: list[Broadcast] = []

    def send(self, client: int, message: Broadcast) -> int:
        """The bytes that cross the wire to ``client``, which holds every field of ``message`` from now on."""
        self._alive.append(message)  # so that an address means the same tensor as long as it is remembered
        hashes = {field: self._hash(message, field) for field in message}
        known = self.held.get(client, {})
        fresh = [field for field in message if known.get(field) != hashes[field]]
        self.held[client] = {**known, **hashes}
        key = tuple((field, hashes[field]) for field in fresh)
        if key not in self._sizes:
            self._sizes[key] = len(message.only(fresh).to_bytes())
        return self._sizes[key]

    def end_round(self) -> None:
        """Forgets the messages of the round."""
        self._hashes.clear()
        self._sizes.clear()
        self._alive.clear()

    def _hash(self, message: Broadcast, field: str) -> str:
        part = message.only([field])
        key = (field, *((name, tensor.data_ptr(), tuple(tensor.shape)) for name, tensor in part.tensors().items()))
        if len(key) == 1:
            key = (field, repr(message.get(field)))
        if key not in self._hashes:
            self._hashes[key] = hashlib.blake2b(part.to_bytes(), digest_size=16).hexdigest()
        return self._hashes[key]
