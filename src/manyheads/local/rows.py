"""What frozen functions say of each sample, computed once, with the same bits however rows are grouped."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue

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
        twins: copies of ``fn``; each computes on a thread of its own, beside the caller's. The bits stay the same.
    """

    def __init__(
        self,
        fn: Callable[[Tensor], Tensor],
        data: Data,
        ahead: Tensor | None = None,
        twins: Sequence[Callable[[Tensor], Tensor]] = (),
    ) -> None:
        self._free: SimpleQueue[Callable[[Tensor], Tensor]] = SimpleQueue()
        for each in (fn, *twins):
            self._free.put(each)
        self._threads = 1 + len(twins)
        self._data = data
        self._ahead = ahead
        self._done = torch.zeros(len(data), dtype=torch.bool)
        self._values: Tensor | None = None
        self._whole = False  # whether all is done

    def __call__(self, rows: Tensor) -> Tensor:
        """The values at ``rows``: ``[len(rows), ...]``."""
        if self._ahead is not None:
            ahead, self._ahead = self._ahead, None
            self._compute(ahead)
        if not self._whole and not bool(self._done[rows].all()):
            self._compute(rows[~self._done[rows]])
        assert self._values is not None
        return self._values.index_select(0, rows.to(self._values.device))  # five times as fast as by []

    def _compute(self, rows: Tensor) -> None:
        pieces = list(chunks(rows))
        threads = min(self._threads, len(pieces))
        if threads < 2:
            self._store(pieces, map(self._of, pieces))
            return
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            self._store(pieces, pool.map(self._of, pieces))

    @torch.no_grad()
    def _of(self, rows: Tensor) -> Tensor:
        fn = self._free.get()
        try:
            return fn(self._data.x(pad(rows)))[: len(rows)]
        finally:
            self._free.put(fn)

    def _store(self, pieces: Sequence[Tensor], values: Iterable[Tensor]) -> None:
        for rows, found in zip(pieces, values, strict=True):
            if self._values is None:
                self._values = found.new_empty(len(self._data), *found.shape[1:])
            self._values[rows] = found
            self._done[rows] = True
        self._whole = bool(self._done.all())


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
