"""One step of training: which samples, which random stream, which parameters, and the watch over its loss."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from manyheads.contract.context import SERVER, Context
from manyheads.contract.random import stream
from manyheads.contract.trainer import Proximal, Terms
from manyheads.contract.tree import Part, Tree
from manyheads.contract.wire import throughout
from manyheads.errors import RunError
from manyheads.local.network import Network


class StoppedError(BaseException):
    """Training was told to end: somebody pressed Ctrl-C, or another client failed."""


@dataclass(frozen=True)
class Step:
    """One mini-batch of a plan: its epoch, its number within the epoch, and its samples."""

    epoch: int
    number: int
    rows: Tensor


def dropout_stream(ctx: Context, step: Step, *draw: int) -> torch.Generator:
    """The stream of one step's dropout masks, or of one numbered draw of it."""
    return stream(ctx.seed, ctx.round, ctx.party, "dropout", step.epoch, step.number, *draw)


def trained_names(ctx: Context, model: Tree, trains: Part) -> list[str]:
    """The parameters of ``trains``, without those that the network's author froze."""
    parameters = trains - (Part.BUFFER | Part.of("frozen"))
    return [name for name in model if parameters.holds(ctx.tags[name])]


def bare_parts(network: Network, trains: Part) -> list[str]:
    """Parts without parameters that count as trained: their dropout is on."""
    return [name for name in network.bare if trains.holds(frozenset({name}))]


MEASURED = 8  # at least


def measured(place: int, steps: int) -> bool:
    """Whether the step at this place of a fit works out proximal terms, which nobody needs but the log.

    It is each one of a short fit, and of others 8 to 11, in the middle of even pieces: as a mean over them changes
    slowly, so does the term.
    """
    every = max(1, steps // MEASURED)
    return place % every == every // 2


def named(terms: Terms) -> Terms:
    """The terms of a loss, if they are what a loss has to return.

    Raises:
        TypeError: it returned something else than named terms.
        ValueError: it returned none.
    """
    if not isinstance(terms, Mapping):
        raise TypeError(f"a loss returns named terms, such as {{'ce': ...}}, not a {type(terms).__name__}")
    if not terms:
        raise ValueError("a loss returned no terms")
    return terms


def tensors(terms: Terms) -> dict[str, Tensor]:
    """The terms of a loss, proximal ones worked out."""
    return {name: term() if isinstance(term, Proximal) else term for name, term in named(terms).items()}


def total(terms: Mapping[str, Tensor]) -> Tensor:
    """The sum of the terms of a loss."""
    first, *rest = terms.values()
    return sum(rest, start=first)


class Log:
    """Sums loss terms for the trace, and stops a run whose loss is not finite."""

    def __init__(self, ctx: Context, phase: str = "") -> None:
        self._ctx, self._phase = ctx, phase
        self._sums: dict[str, tuple[float, int]] = {}

    def note(self, terms: Mapping[str, Tensor], step: Step) -> None:
        """Adds a step's terms.

        Raises:
            RunError: a term is not finite; names round, client and term.
        """
        for term_name, term in terms.items():
            name = f"{self._phase}/{term_name}" if self._phase else term_name
            value = float(term.detach())
            if not math.isfinite(value):
                raise self._diverged(f"loss term {name!r} is {value} in epoch {step.epoch}, step {step.number}")
            so_far, count = self._sums.get(name, (0.0, 0))
            self._sums[name] = so_far + value, count + 1

    def check(self, trained: Iterable[tuple[str, Tensor]]) -> None:
        """Looks at the parameters after the last step, since not every loss shows what is wrong with them.

        In bf16, oneDNN's pooling and ReLU leave out what is not a number.

        Raises:
            RunError: one is not finite; names round, client and parameter.
        """
        for name, tensor in trained:
            if not throughout(torch.isfinite, tensor):
                raise self._diverged(f"{name!r} is not finite after training")

    def _diverged(self, what: str) -> RunError:
        ctx = self._ctx
        who = "the server" if ctx.party == SERVER else f"client {ctx.party}"
        return RunError(
            f"round {ctx.round}, {who}: {what}; a smaller train.lr (now {ctx.sgd.lr:g}) or train.clip may help"
        )

    def close(self) -> None:
        """Adds the mean terms to the trace."""
        self._ctx.trace.append({name: summed / count for name, (summed, count) in self._sums.items()})
