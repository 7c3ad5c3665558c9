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


class Blocks:
    """The test images in one fixed order, in blocks of 64: in every pass an image has the same place modulo 64.

    For some layers that place decides the last bit of what is said of an image.

    Args:
        size: the number of test images.
        first: the rows that are going to be asked for; rows that are asked for together stand together.

    Attributes:
        rows: the images' rows in that order, int64 ``[size]``.
        place: where each row stands in it, int64 ``[size]``.
        wanted: the blocks that hold ``first``, int64, ascending.
    """

    def __init__(self, size: int, first: Tensor) -> None:
        self.rows = torch.tensor(list(dict.fromkeys([*first.tolist(), *range(size)])))
        self.place = torch.argsort(self.rows)
        self.wanted = torch.unique(self.place[first] // MULTIPLE)


class PartOutputs:
    """What a part with certain weights says of the test images. May be asked from several threads.

    Whole blocks are computed, and a thread whose blocks are all under way elsewhere does some that others are going to
    ask for in the meantime: so clients with one test image each cost one pass over all of these together.

    Args:
        weights: the part's.
        test: the test images.
        blocks: their order.
    """

    def __init__(self, weights: Tree, test: Data, blocks: Blocks) -> None:
        self.weights = weights
        self._test, self._blocks = test, blocks
        self._state = torch.zeros(-(-len(test) // MULTIPLE), dtype=torch.uint8)
        self._values: Tensor | None = None
        self._by_row = True
        self._changed = threading.Condition()

    def at(self, rows: Tensor, part: Callable[[Tensor], object]) -> Tensor | None:
        """The outputs at ``rows``, ``[len(rows), ...]``; ``part``, with these weights, computes those that lack.

        None where the part does not say one tensor with a row for each image.
        """
        places = self._blocks.place[rows]
        needed = torch.unique(places // MULTIPLE)
        while self._by_row and len(mine := self._claim(needed)):
            try:
                self._compute(mine, part)
            except BaseException:
                self._settle(mine, _NOBODY)
                raise
            self._settle(mine, _DONE)
        if not self._by_row:
            return None
        assert self._values is not None, "there is no output of no rows"
        return self._values[places]

    def _claim(self, needed: Tensor) -> Tensor:
        """Blocks for the caller to compute, at most a chunk of them; none once all that it needs are there."""
        with self._changed:
            while bool((self._state[needed] != _DONE).any()):
                for blocks, most in ((needed, CHUNK // MULTIPLE), (self._blocks.wanted, 1)):
                    mine: Tensor = blocks[self._state[blocks] == _NOBODY][:most]
                    if len(mine):
                        self._state[mine] = _SOMEBODY
                        return mine
                self._changed.wait()
            return needed[:0]

    def _compute(self, blocks: Tensor, part: Callable[[Tensor], object]) -> None:
        places = (blocks[:, None] * MULTIPLE + torch.arange(MULTIPLE)).flatten()
        places = places[places < len(self._test)]  # the last block may be short
        wide = pad(self._blocks.rows[places])
        values = part(self._test.x(wide))
        if not isinstance(values, Tensor) or values.shape[:1] != wide.shape:
            self._by_row = False
            return
        with self._changed:
            if self._values is None:
                self._values = values.new_empty(len(self._test), *values.shape[1:])
        self._values[places] = values[: len(places)]

    def _settle(self, blocks: Tensor, state: int) -> None:
        with self._changed:
            self._state[blocks] = state
            self._changed.notify_all()


class Outputs:
    """The newest outputs of every part, for all testers of a stage.

    Args:
        test: the test images.
        wanted: their rows that are going to be asked for, client by client.

    Attributes:
        test: as given.
    """

    def __init__(self, test: Data, wanted: Tensor) -> None:
        self.test, self._wanted = test, wanted
        self._blocks = Blocks(len(test), wanted)
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
                newest = self._newest[name] = PartOutputs(weights, self.test, self._blocks)
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
            values = self._find().at(self.current[1], self._part)
            if values is not None:
                return values
        return self._part(*inputs)
