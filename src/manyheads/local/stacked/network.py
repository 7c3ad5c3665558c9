"""A network inside ``vmap``: modules that hold raw tensors, and each client's own piece of what is computed outside."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Generator, Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from manyheads.contract.context import Context
from manyheads.contract.model import Model, Module
from manyheads.contract.tree import Tree
from manyheads.local.network import Bound, Network
from manyheads.local.stacked.values import NotStackableError, StackedBatch, pad
from manyheads.local.steps import Step, dropout_stream
from manyheads.models.dropout import Dropout


def batch_statistics(network: Network) -> dict[str, str]:
    """The layers that normalise by the statistics of a batch, where padding would count: their types, by name."""
    return {
        name: type(module).__name__
        for name, module in network.bind(network.initial).modules.named_modules()
        if isinstance(module, _BatchNorm) or (isinstance(module, _NormBase) and module.track_running_stats)
    }


class Inside:
    """Where a stacked step stands: whose turn it is in ``vmap``, on which batch, at which place of the random streams.

    ``vmap`` runs the code once for all clients. ``place`` is the client's number there, as a tensor that ``vmap``
    knows to be another for each; by it a client gets its piece of what was computed for each client outside.
    """

    def __init__(self) -> None:
        self._batches: dict[int, StackedBatch] = {}

    def start(self, steps: Sequence[tuple[Context, Step]]) -> None:
        """Begins a step of the clients with these contexts."""
        self._steps = steps
        self._streams: list[Generator] | None = None
        self._batches.clear()

    def enter(self, place: Tensor) -> None:
        """From now on ``place`` is the client's number."""
        self._place = place

    def holds(self, rows: Tensor, batch: StackedBatch) -> None:
        """Batches with these ``rows`` are pieces of ``batch``."""
        self._batches[id(rows)] = batch

    def use(self, rows: Tensor, draw: int | None = None) -> None:
        """What comes next works on the batch with these ``rows``; masks come from the step's stream, or ``draw``'s."""
        self._batch = self._batches[id(rows)]
        self._draw = draw
        self._drawn: list[Generator] | None = None

    def mask(self, dropout: Dropout, x: Tensor) -> Tensor:
        """A dropout mask for ``x`` ``[times * size, ...]``, where a layer sees ``times`` batches in a row.

        Every client's real rows get the bits that they get where it trains alone.
        """
        times, rest = divmod(len(x), self._batch.size)
        if rest:
            raise NotStackableError("dropout is applied to something that is no batch of samples")
        masks = []
        for count, stream in zip(self._batch.counts, self._generators(), strict=True):
            mask = dropout.mask((times * count, *x.shape[1:]), x.dtype, stream)
            masks.append(torch.cat([pad(piece, self._batch.size) for piece in torch.split(mask, count)]))
        together = torch.stack(masks).to(x.device)
        return together.index_select(0, self._place.reshape(1)).squeeze(0)

    def _generators(self) -> list[Generator]:
        if self._draw is not None:
            if self._drawn is None:
                self._drawn = [dropout_stream(ctx, step, self._draw) for ctx, step in self._steps]
            return self._drawn
        if self._streams is None:
            self._streams = [dropout_stream(ctx, step) for ctx, step in self._steps]
        return self._streams


class Functional:
    """Some parts of a network, for trees whose tensors belong to ``vmap`` or ``grad``.

    Args:
        network: the network.
        tree: names the tensors that the trees have.
        trained: which of them are trained; it decides the modes, as in ``Network.bind``.
        bare: as there.
        inside: gives dropout its masks.
    """

    def __init__(
        self, network: Network, tree: Collection[str], trained: Collection[str], bare: Collection[str], inside: Inside
    ) -> None:
        self._network, self._inside = network, inside
        self._bound: Bound = network.bind(Tree({name: network.initial[name] for name in tree}), trained, bare)
        for module in list(self._bound.modules.modules()):
            for leaf, child in module.named_children():
                if isinstance(child, Dropout) and child.training:
                    setattr(module, leaf, _Masked(child, inside))
        self.calls: dict[str, Module] = self._bound.calls
        self.calls.update(self._bound.modules.items())

    def model(self, tree: Tree) -> Model:
        """The model with the tensors of ``tree``; it holds until the next call."""
        return self._bound.hold(tree, self._at)

    def _at(self, tree: Tree) -> Model:
        return Functional(self._network, tree, (), (), self._inside).model(tree)


class Recalled:
    """A frozen part whose answer for the current batch is known.

    Attributes:
        x: the batch's.
        answer: for it; None where it is to be computed.
        asked: whether the part was called on x.
    """

    def __init__(self, part: Module) -> None:
        self._part = part
        self.x: Tensor | None = None
        self.answer: Tensor | None = None
        self.asked = False

    def __call__(self, *inputs: Tensor) -> Tensor:
        """The part's output."""
        if len(inputs) == 1 and inputs[0] is self.x:
            self.asked = True
            if self.answer is not None:
                return self.answer
        return self._part(*inputs)


class _Masked(nn.Module):
    """Dropout in train mode, with each client's own masks."""

    def __init__(self, dropout: Dropout, inside: Inside) -> None:
        super().__init__()
        self._dropout, self._inside = dropout, inside

    def forward(self, x: Tensor) -> Tensor:
        """``x`` times the client's mask."""
        return x if self._dropout.p == 0 else x * self._inside.mask(self._dropout, x)
