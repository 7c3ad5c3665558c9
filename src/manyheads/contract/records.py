"""The four records: what lives in the server room, on the wire, and in a client room.

A record holds named trees, tensors and numbers and nothing else: no module, optimizer or handle. That is what makes
resuming, worker processes, clusters and real federations the same thing. Its bytes are a safetensors file; equal
records have equal bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Self

import numpy as np
import safetensors.numpy
import torch
from torch import Tensor

from manyheads.contract.tree import Tree, same_bits

Value = Tree | Tensor | int | float | Mapping[int, Tree]

_FORMAT = 1
_DAMAGE = (ValueError, KeyError, TypeError, AttributeError, RecursionError, safetensors.SafetensorError)


class Record:
    """Frozen fields, read as attributes.

    A field is a ``Tree``, a ``Tensor``, an ``int``, a ``float`` or a mapping of client id to ``Tree``. Tensors are kept
    detached and contiguous, so that a record has the same bits before and after it was on disk or on the wire.
    """

    _fields: dict[str, Value]

    def __init__(self, **fields: Value) -> None:
        object.__setattr__(self, "_fields", {name: _settled(name, fields[name]) for name in sorted(fields)})

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_fields":
            raise AttributeError(name)
        try:
            return self._fields[name]
        except KeyError:
            have = ", ".join(self._fields) or "nothing"
            raise AttributeError(f"{type(self).__name__} has no field {name!r}; it holds {have}") from None

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is frozen; use replace({name}=...)")

    def __contains__(self, name: str) -> bool:
        return name in self._fields

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __eq__(self, other: object) -> bool:
        """Bit for bit."""
        if type(self) is not type(other) or not isinstance(other, Record):
            return NotImplemented
        return list(self) == list(other) and all(
            _same(value, other._fields[name]) for name, value in self._fields.items()
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self._fields.items())})"

    def get(self, name: str, default: Any = None) -> Any:
        """The field, or ``default`` where there is none."""
        return self._fields.get(name, default)

    def replace(self, **fields: Value) -> Self:
        """A copy with these fields set."""
        return type(self)(**(self._fields | fields))

    def only(self, names: Iterator[str] | list[str]) -> Self:
        """A copy with these fields and no others."""
        return type(self)(**{name: self._fields[name] for name in names})

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor under the name that it has in the bytes: ``field``, ``field/name`` or ``field@client/name``."""
        return {key: tensor for name, value in self._fields.items() for key, tensor in _flat(name, value)}

    def to_bytes(self) -> bytes:
        """A safetensors file. The layout is metadata under one key: several would come in a random order."""
        layout = {name: _layout(value) for name, value in self._fields.items()}
        metadata = {"manyheads": json.dumps({"format": _FORMAT, "fields": layout}, sort_keys=True)}
        arrays = {key: tensor.cpu().numpy() for key, tensor in self.tensors().items()}
        return safetensors.numpy.save(arrays, metadata=metadata)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """The record whose ``to_bytes`` gave ``data``.

        Raises:
            ValueError: the bytes are damaged, or not a record's.
        """
        try:
            size = int.from_bytes(data[:8], "little")
            about = json.loads(json.loads(data[8 : 8 + size])["__metadata__"]["manyheads"])
            if about["format"] != _FORMAT:
                raise ValueError(f"format {about['format']!r}; this version reads {_FORMAT}")
            tensors = {key: torch.from_numpy(np.array(array)) for key, array in safetensors.numpy.load(data).items()}
            record = cls(**{name: _parse(name, kind, tensors) for name, kind in about["fields"].items()})
            if strange := set(tensors) - set(record.tensors()):
                raise ValueError(f"tensor {sorted(strange)[0]!r} belongs to no field")
        except _DAMAGE as error:
            raise ValueError(f"damaged or foreign {cls.__name__}: {error}") from None
        return record


class ServerState(Record):
    """What the server keeps from round to round."""

    model: Tree


class Broadcast(Record):
    """What the server sends to one client at the start of a round."""

    model: Tree


class Upload(Record):
    """What a client sends back. Its sender comes from the transport; ``weight`` is the number of its train images."""

    model: Tree
    weight: float


class PrivateState(Record):
    """What a client keeps from round to round and never sends."""

    model: Tree


def _settled(name: str, value: object) -> Value:
    if isinstance(value, Tree):
        return value.map(lambda t: t.detach().contiguous())
    if isinstance(value, Tensor):
        return value.detach().contiguous()
    if isinstance(value, int | float) and not isinstance(value, bool):
        return int(value) if isinstance(value, int) else float(value)  # numpy's float64 is a float of another type
    if isinstance(value, Mapping) and all(isinstance(k, int) and isinstance(v, Tree) for k, v in value.items()):
        return {key: value[key].map(lambda t: t.detach().contiguous()) for key in sorted(value)}
    raise TypeError(
        f"field {name!r} is a {type(value).__name__}; "
        "a record holds Tree, Tensor, int, float or a mapping of client id to Tree"
    )


def _flat(name: str, value: Value) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield name, value
    elif isinstance(value, Tree):
        yield from ((f"{name}/{key}", tensor) for key, tensor in value.items())
    elif not isinstance(value, int | float):
        yield from (
            (f"{name}@{client}/{key}", tensor) for client, tree in value.items() for key, tensor in tree.items()
        )


def _layout(value: Value) -> object:
    if isinstance(value, Tree):
        return "tree"
    if isinstance(value, Tensor):
        return "tensor"
    return list(value) if isinstance(value, Mapping) else value


def _parse(name: str, kind: object, tensors: Mapping[str, Tensor]) -> Value:
    if kind == "tensor":
        return tensors[name]
    if kind == "tree":
        return _subtree(f"{name}/", tensors)
    if isinstance(kind, list):
        return {int(client): _subtree(f"{name}@{client}/", tensors) for client in kind}
    if isinstance(kind, int | float):
        return kind
    raise ValueError(f"field {name!r} has an unknown layout {kind!r}")


def _subtree(prefix: str, tensors: Mapping[str, Tensor]) -> Tree:
    return Tree({key.removeprefix(prefix): tensor for key, tensor in tensors.items() if key.startswith(prefix)})


def _same(a: Value, b: Value) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return same_bits(a, b)
    if isinstance(a, int | float) and isinstance(b, int | float):
        return repr(a) == repr(b)  # so that NaN equals NaN, and 0.0 differs from -0.0 and from 0
    return a == b
