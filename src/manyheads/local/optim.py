"""The optimizers of a fit. Their state starts fresh, and a parameter without a gradient stays as it is."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import Protocol, TypeVar

import torch
from torch import Tensor, nn

from manyheads.contract.context import Context
from manyheads.contract.trainer import SGD, AdamW, Optim, Optimizer
from manyheads.contract.tree import Part

Named = tuple[str, nn.Parameter]
Key = TypeVar("Key", bound=Hashable)


class Rule(Protocol):
    """Moves some parameters along their gradients."""

    def step(self, gradients: Sequence[Tensor | None]) -> None:
        """One step; None for a parameter that the loss does not depend on."""


class Descent:
    """One optimizer, or one for each part, over the trained parameters.

    Raises:
        ValueError: a trained parameter has no optimizer.
    """

    def __init__(self, ctx: Context, trained: Sequence[Named], optim: Optim) -> None:
        self._rules = [
            (places, _rule([trained[place][1] for place in places], optimizer))
            for optimizer, places in assigned(ctx, [name for name, _ in trained], optim)
        ]

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor | None]) -> None:
        """One step, from the gradients of all trained parameters in their order."""
        for places, rule in self._rules:
            rule.step([gradients[place] for place in places])


def assigned(ctx: Context, names: Sequence[str], optim: Optim) -> list[tuple[Optimizer, list[int]]]:
    """Each optimizer that is needed, and the places in ``names`` of the parameters that are its.

    Raises:
        ValueError: a parameter has no optimizer.
    """
    choices = {Part.ALL: optim} if isinstance(optim, Optimizer) else dict(optim)
    places: dict[Part, list[int]] = {part: [] for part in choices}
    for place, name in enumerate(names):
        part = next((part for part in choices if part.holds(ctx.tags[name])), None)
        if part is None:
            raise ValueError(f"no optimizer was given for {name}, which is trained")
        places[part].append(place)
    return [(optimizer, places[part]) for part, optimizer in choices.items() if places[part]]


def descend(sgd: SGD, parameter: Tensor, gradient: Tensor, momentum: dict[Key, Tensor], key: Key) -> None:
    """Moves ``parameter``, in place, along its clipped gradient; ``momentum`` keeps its velocity under ``key``."""
    if sgd.weight_decay:
        gradient = gradient.add(parameter, alpha=sgd.weight_decay)
    if sgd.momentum:
        velocity = momentum.get(key)
        gradient = gradient.clone() if velocity is None else velocity.mul_(sgd.momentum).add_(gradient)
        momentum[key] = gradient
    parameter.add_(gradient, alpha=-sgd.lr)


def _rule(parameters: list[nn.Parameter], optimizer: Optimizer) -> Rule:
    return _SGD(parameters, optimizer) if isinstance(optimizer, SGD) else _Torch(parameters, optimizer)


class _SGD:
    """SGD in a tight loop."""

    def __init__(self, parameters: list[nn.Parameter], sgd: SGD) -> None:
        self._parameters, self._sgd = parameters, sgd
        self._momentum: dict[int, Tensor] = {}

    def step(self, gradients: Sequence[Tensor | None]) -> None:
        """Neither momentum nor decay moves a parameter without a gradient."""
        sgd = self._sgd
        found = [(place, g) for place, g in enumerate(gradients) if g is not None]
        scale = _clipping([g for _, g in found], sgd.clip)
        for place, gradient in found:
            descend(sgd, self._parameters[place], gradient * scale if scale < 1 else gradient, self._momentum, place)


class _Torch:
    """An optimizer of torch's."""

    def __init__(self, parameters: list[nn.Parameter], adam: AdamW) -> None:
        self._parameters = parameters
        self._optimizer = torch.optim.AdamW(parameters, lr=adam.lr, weight_decay=adam.weight_decay)

    def step(self, gradients: Sequence[Tensor | None]) -> None:
        """One step; it leaves out parameters whose gradient is None."""
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            parameter.grad = gradient
        self._optimizer.step()
        self._optimizer.zero_grad()


def _clipping(gradients: list[Tensor], clip: float | None) -> float:
    if clip is None or not gradients:
        return 1.0
    norm = math.sqrt(sum(float(g.double().square().sum()) for g in gradients))
    return clip / norm if norm > clip else 1.0
