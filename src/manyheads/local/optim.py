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
from manyheads.local.gradients import Pull, with_pull

Named = tuple[str, nn.Parameter]
Key = TypeVar("Key", bound=Hashable)


class Rule(Protocol):
    """Moves some parameters along their gradients."""

    def step(self, gradients: Sequence[Tensor | None], pulls: Sequence[Pull | None]) -> None:
        """One step; a gradient is None where the loss does not depend on the parameter."""


class Descent:
    """One optimizer, or one for each part, over the trained parameters.

    Raises:
        ValueError: a trained parameter has no optimizer.
    """

    def __init__(self, ctx: Context, trained: Sequence[Named], optim: Optim) -> None:
        self._parameters = [parameter for _, parameter in trained]
        self._rules = [
            (places, _rule([trained[place][1] for place in places], optimizer))
            for optimizer, places in assigned(ctx, [name for name, _ in trained], optim)
        ]

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor | None], pulls: Sequence[Pull] = ()) -> None:
        """One step, from the gradients of all trained parameters in their order, and from what pulls at these."""
        found = list(gradients)
        left: dict[int, Pull] = {}  # one for a parameter, beside its gradient
        for pull in pulls:
            place = pull.place
            if found[place] is None or place in left:
                found[place] = with_pull(found[place], self._parameters[place], pull)
            else:
                left[place] = pull
        for places, rule in self._rules:
            rule.step([found[place] for place in places], [left.get(place) for place in places])


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


def descend(
    sgd: SGD, parameter: Tensor, gradient: Tensor, momentum: dict[Key, Tensor], key: Key, pull: Pull | None = None
) -> None:
    """Moves ``parameter``, in place, along its clipped gradient; ``momentum`` keeps its velocity under ``key``.

    A pull moves three times the parameter's memory here, and as part of the gradient six times. Where the gradient is
    clipped or has a velocity, it has to be part of it.
    """
    if sgd.weight_decay:
        gradient = gradient.add(parameter, alpha=sgd.weight_decay)
    if sgd.momentum:
        velocity = momentum.get(key)
        gradient = gradient.clone() if velocity is None else velocity.mul_(sgd.momentum).add_(gradient)
        momentum[key] = gradient
    if pull is not None:
        parameter.lerp_(pull.reference, sgd.lr * pull.weight)
    parameter.add_(gradient, alpha=-sgd.lr)


def _rule(parameters: list[nn.Parameter], optimizer: Optimizer) -> Rule:
    return _SGD(parameters, optimizer) if isinstance(optimizer, SGD) else _Torch(parameters, optimizer)


class _SGD:
    """SGD in a tight loop."""

    def __init__(self, parameters: list[nn.Parameter], sgd: SGD) -> None:
        self._parameters, self._sgd = parameters, sgd
        self._momentum: dict[int, Tensor] = {}

    def step(self, gradients: Sequence[Tensor | None], pulls: Sequence[Pull | None]) -> None:
        """Neither momentum nor decay moves a parameter without a gradient."""
        sgd = self._sgd
        if sgd.momentum or sgd.clip is not None:
            gradients, pulls = _whole(self._parameters, gradients, pulls), [None] * len(pulls)
        found = [(place, g) for place, g in enumerate(gradients) if g is not None]
        scale = _clipping([g for _, g in found], sgd.clip)
        for place, gradient in found:
            scaled = gradient * scale if scale < 1 else gradient
            descend(sgd, self._parameters[place], scaled, self._momentum, place, pulls[place])


class _Torch:
    """An optimizer of torch's."""

    def __init__(self, parameters: list[nn.Parameter], adam: AdamW) -> None:
        self._parameters = parameters
        self._optimizer = torch.optim.AdamW(parameters, lr=adam.lr, weight_decay=adam.weight_decay)

    def step(self, gradients: Sequence[Tensor | None], pulls: Sequence[Pull | None]) -> None:
        """One step; it leaves out parameters whose gradient is None."""
        whole = _whole(self._parameters, gradients, pulls)
        for parameter, gradient in zip(self._parameters, whole, strict=True):
            parameter.grad = gradient
        self._optimizer.step()
        self._optimizer.zero_grad()


def _whole(
    parameters: Sequence[Tensor], gradients: Sequence[Tensor | None], pulls: Sequence[Pull | None]
) -> list[Tensor | None]:
    return list(map(with_pull, gradients, parameters, pulls))


def _clipping(gradients: list[Tensor], clip: float | None) -> float:
    if clip is None or not gradients:
        return 1.0
    norm = math.sqrt(sum(float(g.double().square().sum()) for g in gradients))
    return clip / norm if norm > clip else 1.0
