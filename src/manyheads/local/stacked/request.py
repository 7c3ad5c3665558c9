"""What clients ask a trainer for, and which of these requests can be answered at once."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from torch import Tensor

from manyheads.contract.context import Context
from manyheads.contract.data import Data
from manyheads.contract.model import Model
from manyheads.contract.records import Record
from manyheads.contract.trainer import Grad, Loss, Optim, Plan, Trainer
from manyheads.contract.tree import Part, Tree
from manyheads.local.stacked.values import Held, NotStackableError, likeness
from manyheads.local.steps import Step, trained_names
from manyheads.local.training import grouped, steps_of


@dataclass(frozen=True, eq=False)
class Fit:
    """A client's ``fit``; see ``Context.fit``."""

    ctx: Context
    model: Tree
    loss: Loss
    data: Data
    trains: Part
    plan: Plan
    optim: Optim

    @cached_property
    def steps(self) -> list[list[Step]]:
        """The mini-batches of every step."""
        return [[step] for step in steps_of(self.ctx, len(self.data), self.plan)]

    @cached_property
    def kind(self) -> tuple[Any, ...]:
        """Equal for requests that can be answered at once.

        Raises:
            NotStackableError: this one is for itself.
        """
        if not self.steps or not trained_names(self.ctx, self.model, self.trains):
            raise NotStackableError("")
        work = (likeness(self.model), self.trains, self.plan.phase, self.optim)
        return ("fit", *work, *_kind_of(self.data), identity(self.loss, "its loss"))

    def alone(self, trainer: Trainer) -> Tree:
        """The answer of ``trainer``."""
        return trainer.fit(self.ctx, self.model, self.loss, self.data, self.trains, self.plan, self.optim)


@dataclass(frozen=True, eq=False)
class Scan:
    """A client's ``scan``; see ``Context.scan``."""

    ctx: Context
    carry: Any
    step: Callable[[Any, Any, Grad], Any]
    data: Data
    plan: Plan
    width: int

    @cached_property
    def steps(self) -> list[list[Step]]:
        """The mini-batches of every step."""
        plan = replace(self.plan, steps=None if self.plan.steps is None else self.plan.steps * self.width)
        return grouped(steps_of(self.ctx, len(self.data), plan), self.width)[: self.plan.steps]

    @cached_property
    def kind(self) -> tuple[Any, ...]:
        """As for ``Fit``."""
        if not self.steps:
            raise NotStackableError("")
        work = (likeness(self.carry), self.plan.phase, self.width)
        return ("scan", *work, *_kind_of(self.data), identity(self.step, "its step rule"))

    def alone(self, trainer: Trainer) -> Any:
        """The answer of ``trainer``."""
        return trainer.scan(self.ctx, self.carry, self.step, self.data, self.plan, self.width)


Request = Fit | Scan


def _kind_of(data: Data) -> tuple[Any, ...]:
    columns = {name: c.shape[1:] if isinstance(c, Tensor) else None for name, c in data.columns.items()}
    return (columns, likeness(dict(data.constants)), len(data.maps), list(data.draws))


def groups(requests: Sequence[Request]) -> list[tuple[list[Request], str]]:
    """Requests that can be answered at once, together; for one that cannot be, why, if that is worth a word."""
    found: list[tuple[list[Request], str]] = []
    for request in requests:
        try:
            kind = request.kind
        except NotStackableError as error:
            found.append(([request], str(error)))
            continue
        for together, reason in found:
            if not reason and together[0].__dict__.get("kind") == kind:
                together.append(request)
                break
        else:
            found.append(([request], ""))
    return found


def identity(value: Any, what: str, inside: tuple[Any, ...] = ()) -> Any:
    """What is equal for two functions that do the same, however often a method has defined them anew.

    A context counts as equal to any other: what a rule takes from it (the step size, which tensors are the head) is
    the same for all clients. Other objects are compared as ``Held`` does.

    Args:
        value: a function, or what one holds: its defaults, what it closes over, what a ``partial`` gives it.
        what: names it in errors.
        inside: what holds it, outermost first; a function may close over itself.

    Raises:
        NotStackableError: it holds tensors, which are another client's for another client.
    """
    if isinstance(value, Tensor | np.ndarray | Tree | Record | Data | Model):
        kind = type(value).__name__
        raise NotStackableError(f"{what} is a {kind}: give it to the data, with given(), or to the carry")
    for depth, holder in enumerate(inside):
        if value is holder:
            return "what holds it", depth
    within = functools.partial(identity, what=what, inside=(*inside, value))
    if isinstance(value, types.FunctionType):
        cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
        closed = [within(cell.cell_contents, what=f"{what} closes over {name!r}, which") for name, cell in cells]
        defaults = (value.__defaults__ or (), value.__kwdefaults__ or {})
        return value.__code__, within(defaults, what=f"{what} has a default, which"), tuple(closed)
    if isinstance(value, types.MethodType):
        return value.__func__, within(value.__self__)
    if isinstance(value, functools.partial):
        return functools.partial, within(value.func), within((value.args, value.keywords))
    if isinstance(value, Mapping):
        return type(value), tuple((Held(key), within(piece)) for key, piece in value.items())
    if isinstance(value, list | tuple):
        return type(value), tuple(map(within, value))
    return Context if isinstance(value, Context) else Held(value)
