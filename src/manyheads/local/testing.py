"""``Tester``: which test images a model answers rightly, and whose models are tested."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from manyheads.contract import Data, Predictor, Tree
from manyheads.contract.random import stream
from manyheads.local.network import Bound, Network, channels_last
from manyheads.local.outputs import Outputs, PartOutputs, RememberedPart
from manyheads.local.rows import chunks, pad

SAMPLE = 1000  # above so many clients, personal models are measured on a fixed sample of this size


def evaluated(clients: int, seed: int) -> list[int]:
    """The clients whose models are measured, ascending: all, or a sample that stays the same for the whole run."""
    if clients <= SAMPLE:
        return list(range(clients))
    return sorted(torch.randperm(clients, generator=stream(seed, "evaluated"))[:SAMPLE].tolist())


class Tester:
    """Tests models of one network on one test set, one at a time.

    Attributes:
        size: the number of test images.

    Args:
        network: the models' network.
        test: the test set.
        outputs: what all testers of a stage share, so that many heads on one backbone cost one pass over their images.
    """

    def __init__(self, network: Network, test: Data, outputs: Outputs) -> None:
        self._network, self._test, self._outputs = network, test, outputs
        self.size = len(test)
        self._own: dict[str, PartOutputs] = {}  # another tester may have asked for other weights since
        self._bound: Bound | None = None

    @torch.no_grad()
    def right(self, predictor: Predictor, rows: Tensor) -> Tensor:
        """Whether each of the test images ``rows`` is answered rightly: bool ``[len(rows)]``."""
        bound = self._holding(predictor.tree)
        parts = {
            name: RememberedPart(part, partial(self._find, name, predictor.tree))
            for name, part in bound.modules.items()
        }
        bound.calls.update(parts)
        answers = [self._test.y[:0]]
        for some in chunks(rows):
            wide = pad(some)
            x = self._test.x(wide)
            for part in parts.values():
                part.current = (x, wide)
            answers.append(predictor.logits(bound.model, x).argmax(dim=1)[: len(some)])
        bound.calls.update(bound.modules)  # a remembered part refers to this tester: in a circle nothing is freed
        return (torch.cat(answers) == self._test.y[rows]).cpu()

    def _holding(self, tree: Tree) -> Bound:
        """Modules with these weights; binding anew takes longer than testing a head."""
        there = channels_last(tree.map(lambda t: t.to(self._test.y.device)))
        if self._bound is None or not self._bound.fits(tree):
            self._bound = self._network.bind(there)
        else:
            self._bound.load(there)
        return self._bound

    def _find(self, name: str, tree: Tree) -> PartOutputs:
        weights = Tree({each: tree[each] for each in self._network.names[name]})
        if name not in self._own or self._own[name].weights != weights:
            self._own[name] = self._outputs.of(name, weights)
        return self._own[name]
