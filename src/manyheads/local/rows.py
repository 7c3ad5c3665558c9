"""What frozen functions say of each sample, computed once, with the same bits however rows are grouped."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from manyheads.contract.data import Data
from manyheads.contract.model import Module

CHUNK = 256  # what the first layer says of more is so large that the allocator cannot keep its memory
MULTIPLE = 64  # a forward pass over 64 rows equals one over 512 bit for bit, but not one over 7


def pad(rows: Tensor) -> Tensor:
    """``rows`` with copies of its first one behind it, to a multiple of 64."""
    short = -len(rows) % MULTIPLE
    return torch.cat([rows, rows[:1].expand(short)]) if short else rows


def chunks(rows: Tensor) -> Iterator[Tensor]:
    """``rows`` in pieces of at most 256; none where there are no rows."""
    return iter(torch.split(rows, CHUNK) if len(rows) else ())


class RowCache:
    """A frozen function's values for the rows of one ``Data``, each computed when it is first needed.

    Args:
        fn: of x, without gradient.
        data: whose rows are meant.
        ahead: the rows that are going to be asked for; they are computed together at the first question.
    """

    def __init__(self, fn: Callable[[Tensor], Tensor], data: Data, ahead: Tensor | None = None) -> None:
        self._fn = fn
        self._data = data
        self._ahead = ahead
        self._done = torch.zeros(len(data), dtype=torch.bool)
        self._values: Tensor | None = None

    def __call__(self, rows: Tensor) -> Tensor:
        """The values at ``rows``: ``[len(rows), ...]``."""
        if self._ahead is not None:
            ahead, self._ahead = self._ahead, None
            self._compute(ahead)
        if not bool(self._done[rows].all()):
            self._compute(rows[~self._done[rows]])
        assert self._values is not None
        return self._values[rows]

    @torch.no_grad()
    def _compute(self, rows: Tensor) -> None:
        for some in chunks(rows):
            values = self._fn(self._data.x(pad(some)))[: len(some)]
            if self._values is None:
                self._values = values.new_empty(len(self._data), *values.shape[1:])
            self._values[some] = values
            self._done[some] = True


class CachedPart:
    """A frozen part of the network: on the current batch's own x it answers from a cache, on anything else it computes.

    Attributes:
        current: the current batch's x and rows.
    """

    def __init__(self, part: Module, cache: RowCache) -> None:
        self._part = part
        self._cache = cache
        self.current: tuple[Tensor, Tensor] | None = None

    def __call__(self, *inputs: Tensor) -> Tensor:
        """The part's output, from the cache where it can be."""
        if self.current is not None and len(inputs) == 1 and inputs[0] is self.current[0]:
            return self._cache(self.current[1])
        return self._part(*inputs)
