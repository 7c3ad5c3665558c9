"""What ``fit`` and ``scan`` of several clients at once share: the order of clients, their batches, their losses.

Clients stand in the order of their number of steps, longest first, so that those that are done leave at the end of the
stack, and nothing is computed for them any more. Where batches differ in size they are padded, with ``Batch.mask``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch.func import vmap

from manyheads.contract.data import Batch
from manyheads.errors import RunError
from manyheads.local.network import Bound
from manyheads.local.stacked.network import Inside
from manyheads.local.stacked.request import Fit, Scan
from manyheads.local.stacked.values import NotStackableError, StackedBatch, stack
from manyheads.local.steps import Log, StoppedError, measured
from manyheads.local.training import Feed

R = TypeVar("R", Fit, Scan)

CLOSE, NEAR_ZERO = 1e-4, 1e-5  # how far apart a client's loss may be, stacked and alone

Values = Mapping[str, Tensor]  # of the terms of a loss


class Crowd(ABC, Generic[R]):
    """The clients of a stacked phase.

    Args:
        requests: alike ones.

    Attributes:
        requests: longest first.
        inside: where the current step stands.
        proximal: names of loss terms that are logged at some steps only, as ``local.steps.measured`` has it.
    """

    def __init__(self, requests: Sequence[R]) -> None:
        self.requests: list[R] = sorted(requests, key=lambda request: -len(request.steps))
        self.inside = Inside()
        self.proximal: set[str] = set()
        self._constants, self._rebuild = stack([dict(request.data.constants) for request in self.requests])
        self._feeds: list[Feed] = []
        self._here = len(requests)
        self._results: dict[int, Any] = {}
        self._said: list[list[Values]] = []
        self._compared: set[bool] = set()

    def feed(self, bounds: Sequence[Bound | None]) -> None:
        """Makes the feeds; ``bounds`` holds each client's modules, for what frozen parts say."""
        for request, bound in zip(self.requests, bounds, strict=True):
            steps = [one for step in request.steps for one in step]
            self._feeds.append(Feed(request.ctx, request.data, steps, bound))

    def run(self, stopped: Callable[[], bool]) -> list[tuple[R, Any]]:
        """Every client's result, or the RunError that its losses are.

        Raises:
            NotStackableError: a client gets something else than it gets alone.
        """
        for number in range(len(self.requests[0].steps)):
            self._leave(sum(len(request.steps) > number for request in self.requests))
            if stopped():
                raise StoppedError
            self._said.append(self._step(number, *self._batches(number)))
        self._leave(0)
        said = [[{name: t.detach().cpu() for name, t in terms.items()} for terms in calls] for calls in self._said]
        return [(request, self._answer(k, said)) for k, request in enumerate(self.requests)]

    @abstractmethod
    def _step(self, number: int, each: list[list[Batch]], stacked: list[StackedBatch]) -> list[Values]:
        """One step of all that are here: their loss terms, call by call."""

    @abstractmethod
    def _result(self, k: int) -> Any:
        """What the client at place ``k`` ends with."""

    @abstractmethod
    def _keep(self, count: int) -> None:
        """Only the first ``count`` clients go on."""

    def _leave(self, count: int) -> None:
        if count == self._here:
            return
        for k in range(count, self._here):
            self._results[k] = self._result(k)
        self._here = count
        self._constants = [tensor[:count] for tensor in self._constants]
        self._keep(count)

    def _batches(self, number: int) -> tuple[list[list[Batch]], list[StackedBatch]]:
        """The mini-batches of a step, by client and stacked."""
        here = self.requests[: self._here]
        self.inside.start([(request.ctx, request.steps[number][0]) for request in here])
        each = [[feed.batch(one) for one in r.steps[number]] for r, feed in zip(here, self._feeds, strict=False)]
        constants = [request.data.constants for request in here]
        return each, [StackedBatch(some, constants) for some in zip(*each, strict=True)]

    def _for_each(self, one: Callable[..., Any], stacked: Sequence[StackedBatch], *held: Any) -> Any:
        """``one(batches, *held)`` for every client, in ``vmap``; ``held`` are stacked values."""

        def inside(place: Tensor, constants: list[Tensor], pieces: list[list[Tensor]], *held: Any) -> Any:
            self.inside.enter(place)
            mine = self._rebuild(iter(constants))
            batches = [whole.one(tensors, mine) for whole, tensors in zip(stacked, pieces, strict=True)]
            for batch, whole in zip(batches, stacked, strict=True):
                self.inside.holds(batch.rows, whole)
            return one(batches, *held)

        places = torch.arange(self._here, device=stacked[0].tensors[0].device)
        # The only random numbers inside are the dropout masks, and they are drawn for all clients in one go.
        return vmap(inside, randomness="same")(places, self._constants, [b.tensors for b in stacked], *held)

    def _suspect(self, stacked: Sequence[StackedBatch]) -> int | None:
        """A client to compare with what it does alone: on the first step, and on the first that has padding."""
        padded = any(min(batch.counts) < batch.size for batch in stacked)
        if padded in self._compared or (self._compared and not padded):
            return None
        self._compared.add(padded)
        counts = stacked[0].counts
        return max(range(len(counts)), key=lambda k: (-counts[k], k))

    def _answer(self, k: int, said: Sequence[Sequence[Values]]) -> Any:
        request = self.requests[k]
        log = Log(request.ctx, request.plan.phase)
        try:
            for place, (step, calls) in enumerate(zip(request.steps, said, strict=False)):
                left_out = set() if measured(place, len(request.steps)) else self.proximal
                for terms in calls:
                    log.note({name: term[k] for name, term in terms.items() if name not in left_out}, step[0])
        except RunError as error:
            return error
        log.close()
        return self._results[k]


def check_close(what: str, together: Tensor, alone: Tensor) -> None:
    """Compares what a client gets in a stack and alone.

    Raises:
        NotStackableError: it is not the same.
    """
    scale = float(alone.detach().abs().max()) if alone.numel() else 0.0
    apart = CLOSE * scale + NEAR_ZERO
    if not torch.allclose(together.detach().to(alone.dtype), alone.detach(), rtol=0, atol=apart, equal_nan=True):
        raise NotStackableError(f"{what} is another where batches are padded: is every mean a b.mean()?")
