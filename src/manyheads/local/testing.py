"""``Tester``: which test images a model answers rightly."""

from __future__ import annotations

import torch
from torch import Tensor

from manyheads.contract import Data, Predictor, Tree
from manyheads.contract.model import Module
from manyheads.local.network import Network, channels_last
from manyheads.local.rows import CachedPart, RowCache, chunks, pad


class Tester:
    """Tests models of one network on one test set.

    What a part computes from a test image is remembered as long as the same weights come back, so that many heads on
    one backbone cost one pass over their test images.

    Attributes:
        size: the number of test images.
    """

    def __init__(self, network: Network, test: Data) -> None:
        self._network, self._test = network, test
        self.size = len(test)
        self._remembered: dict[str, tuple[Tree, RowCache]] = {}

    @torch.no_grad()
    def right(self, predictor: Predictor, rows: Tensor) -> Tensor:
        """Whether each of the test images ``rows`` is answered rightly: bool ``[len(rows)]``."""
        bound = self._network.bind(channels_last(predictor.tree))
        cached = {
            name: CachedPart(part, self._cache(name, part, predictor.tree.part(name)))
            for name, part in bound.calls.items()
        }
        bound.calls.update(cached)
        answers = [torch.empty(0, dtype=torch.int64)]
        for some in chunks(rows):
            wide = pad(some)
            x = self._test.x(wide)
            for part in cached.values():
                part.current = (x, wide)
            answers.append(predictor.logits(bound.model, x).argmax(dim=1)[: len(some)])
        return torch.cat(answers) == self._test.y[rows]

    def _cache(self, name: str, part: Module, weights: Tree) -> RowCache:
        if name in self._remembered and _same_memory(self._remembered[name][0], weights):
            return self._remembered[name][1]
        cache = RowCache(part, self._test)
        self._remembered[name] = (weights, cache)
        return cache


def _same_memory(a: Tree, b: Tree) -> bool:
    """Whether two trees are the same tensors: both are alive, so an address tells, and records never change."""
    return list(a) == list(b) and all(
        t.data_ptr() == b[name].data_ptr() and t.shape == b[name].shape for name, t in a.items()
    )
