"""Values of several clients as one, with the client as first dimension, and one client's again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from manyheads.contract.data import Batch
from manyheads.contract.tree import Tree

Rebuild = Callable[[Iterator[Tensor]], Any]


class NotStackableError(Exception):
    """Several clients cannot do this at once. The message says why; it is empty where nobody needs to know."""


def apart(value: Any) -> tuple[list[Tensor], Rebuild]:
    """The tensors in a value, and how to make the same value of other tensors.

    Args:
        value: a tree, a tensor, or a tuple or mapping of such; anything else in it stays as it is.
    """
    if isinstance(value, Tensor):
        return [value], next
    if isinstance(value, Mapping):
        names, kind = list(value), Tree if isinstance(value, Tree) else dict
        tensors, whole = apart(tuple(value.values()))
        return tensors, lambda rest: kind(dict(zip(names, whole(rest), strict=True)))
    if isinstance(value, tuple):
        pieces = [apart(piece) for piece in value]
        return [t for found, _ in pieces for t in found], lambda rest: tuple(make(rest) for _, make in pieces)
    return [], lambda rest: value


@dataclass(frozen=True, eq=False)
class Held:
    """Something that is no tensor, equal to what may take its place: the same object, or an equal one of its type.

    Two that cannot be compared, or whose comparison is no yes or no (as of arrays), are not equal.
    """

    value: Any

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Held):
            return NotImplemented
        if self.value is other.value or type(self.value) is not type(other.value):
            return self.value is other.value
        try:
            same = self.value == other.value
        except Exception:  # a comparison is another's code, and this one asks whatever a method holds
            return False
        return isinstance(same, bool | np.bool_) and bool(same)


def likeness(value: Any) -> Any:
    """What two values have in common that can be stacked: names, shapes, types, and whatever is no tensor."""
    if isinstance(value, Tensor):
        return value.shape, value.dtype
    if isinstance(value, Mapping):
        return {name: likeness(piece) for name, piece in value.items()}
    return tuple(map(likeness, value)) if isinstance(value, tuple) else Held(value)


def stack(values: Sequence[Any]) -> tuple[list[Tensor], Rebuild]:
    """The tensors of alike values, ``[K, ...]`` each, and how to make one client's value of its slices."""
    pieces = [apart(value) for value in values]
    return [torch.stack(each) for each in zip(*(tensors for tensors, _ in pieces), strict=True)], pieces[0][1]


def pick(tensors: Sequence[Tensor], rebuild: Rebuild, place: int) -> Any:
    """The value of the client at ``place``, which shares no memory with the stack."""
    return rebuild(iter([tensor[place].clone() for tensor in tensors]))


def pad(tensor: Tensor, size: int) -> Tensor:
    """``tensor`` ``[n, ...]`` with copies of its first row behind it, ``[size, ...]``.

    Copies and not zeros: what a loss says of them is as finite as what it says of a real sample.
    """
    short = size - len(tensor)
    return torch.cat([tensor, tensor[:1].expand(short, *tensor.shape[1:])]) if short else tensor


class StackedBatch:
    """The batches of several clients, padded to one size.

    Args:
        batches: one a client.
        constants: each client's, as in its ``Data``; they are stacked elsewhere, once.

    Attributes:
        tensors: ``[K, ...]`` each.
        counts: how many real samples each client has.
        size: how many samples each has with padding.

    Raises:
        NotStackableError: a batch holds something else than a value for each sample.
    """

    def __init__(self, batches: Sequence[Batch], constants: Sequence[Mapping[str, Any]]) -> None:
        self.counts = [len(batch) for batch in batches]
        self.size = max(self.counts)
        self.tensors, self._rebuild = stack(
            [self._padded(batch, own) for batch, own in zip(batches, constants, strict=True)]
        )

    def _padded(self, batch: Batch, constants: Mapping[str, Any]) -> dict[str, Any]:
        extra = {name: value for name, value in batch.extra.items() if value is not constants.get(name)}
        for name, value in extra.items():
            if not isinstance(value, Tensor) or value.shape[:1] != (len(batch),):
                raise NotStackableError(f"the batch's {name!r} is not one value for each sample")
        padded: dict[str, Any] = {name: pad(getattr(batch, name), self.size) for name in ("x", "y", "rows")}
        padded["extra"] = {name: pad(value, self.size) for name, value in extra.items()}
        if min(self.counts) < self.size:
            padded["mask"] = (torch.arange(self.size) < len(batch)).float().to(batch.x.device)
        return padded

    def one(self, tensors: Sequence[Tensor], constants: Mapping[str, Any]) -> Batch:
        """A client's batch, of its slices of ``tensors`` and its constants."""
        fields = self._rebuild(iter(tensors))
        extra = {**constants, **fields["extra"]}
        return Batch(fields["x"], fields["y"], fields["rows"], extra, fields.get("mask"))
