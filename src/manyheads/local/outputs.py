"""``Outputs``: what the parts of a network say of the test images, computed once for all who ask."""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch
from torch import Tensor

from manyheads.contract.data import Data
from manyheads.contract.model import Module
from manyheads.contract.tree import Tree
from manyheads.local.rows import CHUNK, MULTIPLE, pad

_NOBODY, _SOMEBODY, _DONE = 0, 1, 2


class PartOutputs:
    """What a part with certain weights says of the test images. May be asked from several threads.

    A pass takes a multiple of 64 rows. Where fewer are asked for, it is filled up with rows that others are going to
    ask for, and a thread whose rows are all under way elsewhere does some of those in the meantime: so clients with one
    test image each cost one pass over all of these together, and a part that nobody shares costs no more than alone.

    Args:
        weights: the part's.
        test: the test images.
        wanted: their rows that are going to be asked for.
    """

    def __init__(self, weights: Tree, test: Data, wanted: Tensor) -> None:
        self.weights = weights
        self._test, self._wanted = test, wanted
        self._state = torch.zeros(len(test), dtype=torch.uint8)
        self._values: Tensor | None = None
        self._changed = threading.Condition()

    def at(self, rows: Tensor, part: Callable[[Tensor], Tensor]) -> Tensor:
        """The outputs at ``rows``, ``[len(rows), ...]``; ``part``, with these weights, computes those that lack."""
        while len(mine := self._claim(rows)):
            try:
                values = part(self._test.x(pad(mine)))[: len(mine)]
            except BaseException:
                self._settle(mine, _NOBODY)
                raise
            self._put(mine, values)
        assert self._values is not None, "there is no output of no rows"
        return self._values[rows]

    def _claim(self, rows: Tensor) -> Tensor:
        """Rows for the caller to compute, at most a chunk of them; none once all of ``rows`` are there."""
        with self._changed:
            while True:
                state = self._state[rows]
                if bool((state == _DONE).all()):
                    return rows[:0]
                mine: Tensor = torch.unique(rows[state == _NOBODY])[:CHUNK]
                self._state[mine] = _SOMEBODY
                if room := -len(mine) % MULTIPLE if len(mine) else MULTIPLE:
                    more = self._wanted[self._state[self._wanted] == _NOBODY][:room]
                    self._state[more] = _SOMEBODY
                    mine = torch.cat([mine, more])
                if len(mine):
                    return mine
                self._changed.wait()

    def _put(self, rows: Tensor, values: Tensor) -> None:
        with self._changed:
            if self._values is None:
                self._values = values.new_empty(len(self._test), *values.shape[1:])
            self._values[rows] = values
        self._settle(rows, _DONE)

    def _settle(self, rows: Tensor, state: int) -> None:
        with self._changed:
            self._state[rows] = state
            self._changed.notify_all()


class Outputs:
    """The newest outputs of every part, for all testers of a stage.

    Args:
        test: the test images.
        wanted: their rows that are going to be asked for, each once.

    Attributes:
        test: as given.
    """

    def __init__(self, test: Data, wanted: Tensor) -> None:
        self.test, self._wanted = test, wanted
        self._newest: dict[str, PartOutputs] = {}
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[type[Outputs], tuple[Data, Tensor]]:
        """On another machine there are none yet."""
        return Outputs, (self.test, self._wanted)

    def of(self, name: str, weights: Tree) -> PartOutputs:
        """Those of a part with these weights: the ones that are there, where the last to ask had the same weights."""
        with self._lock:
            newest = self._newest.get(name)
            if newest is None or newest.weights != weights:
                newest = self._newest[name] = PartOutputs(weights, self.test, self._wanted)
            return newest


class RememberedPart:
    """A part of the network that is tested: on the test images it answers from its outputs, else it computes.

    Args:
        part: computes.
        find: gives its outputs; asked only when they are needed, since heads get other inputs.

    Attributes:
        current: the current batch's x and rows.
    """

    def __init__(self, part: Module, find: Callable[[], PartOutputs]) -> None:
        self._part, self._find = part, find
        self.current: tuple[Tensor, Tensor] | None = None

    def __call__(self, *inputs: Tensor) -> Tensor:
        """The part's output."""
        if self.current is not None and len(inputs) == 1 and inputs[0] is self.current[0]:
            return self._find().at(self.current[1], self._part)
        return self._part(*inputs)
