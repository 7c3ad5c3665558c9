"""``LocalTrainer``: descent over a loss (``fit``) and step rules of a method's own (``scan``), in one tight loop."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from manyheads.contract.context import Context
from manyheads.contract.data import Batch, Column, Data
from manyheads.contract.model import Model
from manyheads.contract.trainer import Carry, Grad, Loss, Optim, Plan
from manyheads.contract.tree import Part, Tree
from manyheads.local.gradients import slope
from manyheads.local.network import Bound, Network, channels_last
from manyheads.local.optim import Descent
from manyheads.local.rows import CachedPart, RowCache
from manyheads.local.scanning import Buffers, Gradient, trees
from manyheads.local.steps import (
    Log,
    Step,
    StoppedError,
    bare_parts,
    dropout_stream,
    measured,
    tensors,
    total,
    trained_names,
)

GRADIENT_CHUNK = 128  # larger ones are no faster, and hold what every layer says until the gradient is taken


def steps_of(ctx: Context, n: int, plan: Plan) -> list[Step]:
    """The mini-batches of a plan over ``n`` samples. A last one of a single sample is merged into the one before it."""
    epochs: Iterator[int] = iter(plan.epochs) if plan.steps is None else itertools.count(plan.epochs.start)
    steps: list[Step] = []
    for epoch in epochs:
        if plan.steps is not None and len(steps) >= plan.steps:
            break
        order = torch.randperm(n, generator=ctx.rng("order", epoch))
        pieces = list(torch.split(order, plan.batch))
        if len(pieces) > 1 and len(pieces[-1]) == 1:
            pieces[-2:] = [torch.cat(pieces[-2:])]
        steps += [Step(epoch, number, rows) for number, rows in enumerate(pieces)]
    return steps[: plan.steps]


class LocalTrainer:
    """The reference trainer: one network, in one thread but for what is said of ``threads``.

    Args:
        network: what is trained.
        stopped: asked before every step; training ends where it says True.
        threads: how many share the passes of a fit's frozen parts.
    """

    def __init__(self, network: Network, stopped: Callable[[], bool] = lambda: False, threads: int = 1) -> None:
        self._network, self._stopped, self._threads = network, stopped, threads

    def model(self, tree: Tree) -> Model:
        """``tree`` as a frozen model in eval mode."""
        return self._network.model(channels_last(tree))

    def rowwise(self, fn: Callable[[Tensor], Tensor], data: Data) -> Tensor:
        """``fn`` of every sample's x, ``[n, ...]``."""
        return RowCache(fn, data)(torch.arange(len(data)))

    def fit(self, ctx: Context, model: Tree, loss: Loss, data: Data, trains: Part, plan: Plan, optim: Optim) -> Tree:
        """See ``Context.fit``."""
        steps = steps_of(ctx, len(data), plan)
        names = trained_names(ctx, model, trains)
        if not steps or not names:
            return model
        bound = self._network.bind(channels_last(model), names, bare_parts(self._network, trains))
        feed = Feed(ctx, data, steps, bound, lambda: self._network.bind(bound.tree()), self._threads)
        parameters = [p for _, p in bound.trained]
        descent = Descent(ctx, bound.trained, optim)
        log = Log(ctx, plan.phase)
        for place, step in enumerate(steps):
            if self._stopped():
                raise StoppedError
            terms = loss(bound.model, feed.batch(step))
            values, found, pulls = slope(terms, parameters, measured(place, len(steps)))
            log.note(values, step)
            descent.step(found, pulls)
        log.check(bound.trained)
        log.close()
        return bound.tree().map(lambda t: t.contiguous())

    def gradient(self, ctx: Context, model: Tree, loss: Loss, data: Data, trains: Part) -> Tree:
        """See ``Context.gradient``."""
        names = trained_names(ctx, model, trains)
        if not names:
            return Tree()
        bound = self._network.bind(channels_last(model), names)
        bound.modules.eval()
        pieces = [
            Step(0, number, rows) for number, rows in enumerate(torch.split(torch.arange(len(data)), GRADIENT_CHUNK))
        ]
        feed = Feed(ctx, replace(data, maps=()), pieces, bound)
        parameters = [p for _, p in bound.trained]
        sums = [torch.zeros_like(p) for p in parameters]
        for piece in pieces:
            if self._stopped():
                raise StoppedError
            share = len(piece.rows) / len(data)
            found = torch.autograd.grad(
                total(tensors(loss(bound.model, feed.batch(piece)))),
                parameters,
                allow_unused=True,
                materialize_grads=True,
            )
            for added, gradient in zip(sums, found, strict=True):
                added.add_(gradient, alpha=share)
        return Tree({name: added.contiguous() for (name, _), added in zip(bound.trained, sums, strict=True)})

    def scan(
        self, ctx: Context, carry: Carry, step: Callable[[Carry, Any, Grad], Carry], data: Data, plan: Plan, width: int
    ) -> Carry:
        """See ``Context.scan``."""
        per_epoch = replace(plan, steps=None if plan.steps is None else plan.steps * width)
        steps = steps_of(ctx, len(data), per_epoch)
        buffers = Buffers(ctx)
        gradient = Gradient(ctx, self._network, buffers, plan.phase)
        feed = Feed(ctx, data, steps, None)
        carry = buffers.copied(carry)
        for group in grouped(steps, width)[: plan.steps]:
            if self._stopped():
                raise StoppedError
            gradient.start(group[0])
            batches = tuple(feed.batch(one) for one in group)
            carry = buffers.adopted(step(carry, batches[0] if width == 1 else batches, gradient))
        for tree in trees(carry):
            gradient.log.check(tree.items())
        gradient.log.close()
        return carry


class Feed:
    """Makes the batches of a plan. Frozen functions run once a sample, unless maps change x at every step.

    Args:
        ctx: whose plan it is.
        data: the samples.
        steps: the plan.
        bound: the network; its frozen parts answer from caches.
        twin: makes another one like it, for a thread of its own.
        threads: how many share the passes of frozen parts.
    """

    def __init__(
        self,
        ctx: Context,
        data: Data,
        steps: list[Step],
        bound: Bound | None,
        twin: Callable[[], Bound] | None = None,
        threads: int = 1,
    ) -> None:
        self._ctx, self._data, self._bound = ctx, data, bound
        self._columns: dict[str, Callable[[Tensor, Tensor], Tensor]] = {}
        self._cached: list[CachedPart] = []
        ahead = torch.unique(torch.cat([step.rows for step in steps])) if steps else None
        for name, column in data.columns.items():
            self._columns[name] = self._column(column, ahead)
        if bound is not None and not data.maps:
            frozen = [name for name in bound.calls if name not in bound.live]
            twins = [twin() for _ in range(threads - 1)] if twin and frozen else []
            for name in frozen:
                part = bound.calls[name]
                cached = CachedPart(part, RowCache(part, data, ahead, [other.calls[name] for other in twins]))
                bound.calls[name] = cached
                self._cached.append(cached)

    def _column(self, column: Column, ahead: Tensor | None) -> Callable[[Tensor, Tensor], Tensor]:
        if isinstance(column, Tensor):
            return lambda x, rows: column[rows]
        if self._data.maps:
            return lambda x, rows: torch.no_grad()(column)(x)
        cache = RowCache(column, self._data, ahead)
        return lambda x, rows: cache(rows)

    def batch(self, step: Step) -> Batch:
        """The batch of a step, after its maps, with columns and constants; dropout is set to the step's stream."""
        ctx, data, rows = self._ctx, self._data, step.rows
        batch = Batch(data.x(rows), data.y[rows], rows, data.constants)
        for place, fn in enumerate(data.maps):
            batch = fn(batch, ctx.rng("map", place, step.epoch, step.number))
        batch = batch.replace(**{name: column(batch.x, rows) for name, column in self._columns.items()})
        drawn = {name: fn(len(rows), ctx.rng("draw", name, step.epoch, step.number)) for name, fn in data.draws.items()}
        batch = batch.replace(**drawn) if drawn else batch
        if self._bound is not None and self._bound.dropouts:
            self._bound.draw_from(dropout_stream(ctx, step))
        for cached in self._cached:
            cached.current = (batch.x, rows)
        return batch


def grouped(steps: list[Step], width: int) -> list[list[Step]]:
    """Groups of ``width`` steps within an epoch; a last group that lacks some takes the epoch's first ones again."""
    groups = []
    for epoch in dict.fromkeys(step.epoch for step in steps):
        mine = [step for step in steps if step.epoch == epoch]
        groups += [[mine[(start + k) % len(mine)] for k in range(width)] for start in range(0, len(mine), width)]
    return groups
