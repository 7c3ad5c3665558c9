"""What ``scan`` hands to a step rule: gradients at any tree, without touching what belongs to others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from manyheads.contract.context import Context
from manyheads.contract.data import Batch
from manyheads.contract.trainer import Loss
from manyheads.contract.tree import Part, Tree
from manyheads.local.network import Bound, Network, channels_last
from manyheads.local.steps import Log, Step, bare_parts, dropout_stream, tensors, total, trained_names


class Buffers:
    """Which buffers belong to a scan. Training writes into buffers (BatchNorm's statistics), so it needs its own.

    A buffer is known by its address: whatever existed before the scan lives on, so no address can come to mean another
    party's tensor.
    """

    def __init__(self, ctx: Context) -> None:
        self._names = {name for name, tags in ctx.tags.items() if "buffer" in tags}
        self._own: set[int] = set()

    def copied(self, carry: Any) -> Any:
        """A copy of a carry, in the layout that training uses, that shares no memory with it."""
        if isinstance(carry, Tree):
            return self._owned(channels_last(carry))
        if isinstance(carry, tuple):
            return tuple(map(self.copied, carry))
        if isinstance(carry, Tensor | int | float):
            return carry.clone() if isinstance(carry, Tensor) else carry
        raise TypeError(
            f"the carry of a scan is a tree, a tensor, a number or a tuple of them, not {type(carry).__name__}"
        )

    def adopted(self, carry: Any) -> Any:
        """The carry after a step: buffers in it that came from elsewhere are copied, and belong to the scan now."""
        if isinstance(carry, tuple):
            return tuple(map(self.adopted, carry))
        return self._owned(self.safe(carry)) if isinstance(carry, Tree) else carry

    def safe(self, tree: Tree) -> Tree:
        """``tree`` with copies in place of others' buffers."""
        strange = {name: t.clone() for name, t in tree.items() if name in self._names and t.data_ptr() not in self._own}
        return tree | Tree(strange) if strange else tree

    def _owned(self, tree: Tree) -> Tree:
        self._own.update(t.data_ptr() for name, t in tree.items() if name in self._names)
        return tree


def trees(carry: Any) -> Iterator[Tree]:
    """The trees in a carry."""
    if isinstance(carry, Tree):
        yield carry
    elif isinstance(carry, tuple):
        for value in carry:
            yield from trees(value)


class Gradient:
    """The ``grad`` of a step rule; see ``contract.context.Grad``."""

    def __init__(self, ctx: Context, network: Network, buffers: Buffers, phase: str = "") -> None:
        self._ctx, self._network, self._buffers = ctx, network, buffers
        self._bound: Bound | None = None
        self.log = Log(ctx, phase)

    def start(self, step: Step) -> None:
        """Begins a step."""
        self._step = step
        self._stream = dropout_stream(self._ctx, step)

    def __call__(
        self, loss: Loss, tree: Tree, b: Batch, trains: Part = Part.ALL, draw: int | None = None, /
    ) -> tuple[Tree, Tensor]:
        """The gradient and the loss of one batch."""
        if self._bound is None or not self._bound.fits(tree):
            self._bound = self._network.bind(tree)
        bound = self._bound
        bound.load(self._buffers.safe(tree))
        bound.train(trained_names(self._ctx, tree, trains), bare_parts(self._network, trains))
        bound.draw_from(self._stream if draw is None else dropout_stream(self._ctx, self._step, draw))
        terms = tensors(loss(bound.model, b))
        self.log.note(terms, self._step)
        value = total(terms)
        gradients = torch.autograd.grad(value, [p for _, p in bound.trained], allow_unused=True)
        found = {name: g for (name, _), g in zip(bound.trained, gradients, strict=True) if g is not None}
        return Tree(found), value.detach()
