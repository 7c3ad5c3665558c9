"""``Downlink``: counts what the server sends. A field that a client holds already is not sent again."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Mapping

from torch import Tensor, UntypedStorage
from torch.multiprocessing.reductions import StorageWeakRef

from manyheads.contract import Broadcast

# Of a memory, as long as it is remembered: no other one gets the same. It does not keep the memory itself.
_identity: Callable[[UntypedStorage], Hashable] = StorageWeakRef


class Downlink:
    """Measures broadcasts, as the bytes of the serialised message."""

    def __init__(self) -> None:
        self._hashes: dict[tuple[Hashable, ...], str] = {}
        self._sizes: dict[tuple[Hashable, ...], int] = {}

    def send(self, message: Broadcast, held: Mapping[str, str]) -> tuple[int, dict[str, str]]:
        """The bytes that cross the wire, and what the client holds from then on.

        Args:
            message: what the client is to have.
            held: the content hash of every field that it received last.
        """
        hashes = {field: self._hash(message, field) for field in message}
        fresh = [field for field in message if held.get(field) != hashes[field]]
        key = tuple((field, hashes[field]) for field in fresh)
        if key not in self._sizes:
            self._sizes[key] = len(message.only(fresh).to_bytes())
        return self._sizes[key], {**held, **hashes}

    def end_round(self) -> None:
        """Forgets the messages of the round."""
        self._hashes.clear()
        self._sizes.clear()

    def _hash(self, message: Broadcast, field: str) -> str:
        part = message.only([field])
        key = (field, *((name, *_place(tensor)) for name, tensor in part.tensors().items()))
        if len(key) == 1:
            key = (field, repr(message.get(field)))
        if key not in self._hashes:
            self._hashes[key] = hashlib.blake2b(part.to_bytes(), digest_size=16).hexdigest()
        return self._hashes[key]


def _place(tensor: Tensor) -> tuple[Hashable, ...]:
    return _identity(tensor.untyped_storage()), tensor.storage_offset(), tuple(tensor.shape), tensor.dtype
