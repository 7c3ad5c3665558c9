"""The optimizers of a stacked fit: one step moves the parameters of all clients, each by its own gradient."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from manyheads.contract.context import Context
from manyheads.contract.trainer import SGD, AdamW, Optim
from manyheads.local.optim import assigned, descend


class StackedDescent:
    """One optimizer, or one for each part, over stacked parameters; see ``local.optim.Descent``.

    Args:
        ctx: a client's.
        parameters: by name, ``[K, ...]``. They are changed in place.
        optim: the optimizers.
        unused: parameters that the loss does not depend on; they stay as they are.
    """

    def __init__(self, ctx: Context, parameters: Mapping[str, Tensor], optim: Optim, unused: frozenset[str]) -> None:
        names = list(parameters)
        self._rules: list[_SGD | _AdamW] = []
        for optimizer, places in assigned(ctx, names, optim):
            mine = {names[place]: parameters[names[place]] for place in places if names[place] not in unused}
            if mine:
                self._rules.append(_SGD(mine, optimizer) if isinstance(optimizer, SGD) else _AdamW(mine, optimizer))

    @torch.no_grad()
    def step(self, gradients: Mapping[str, Tensor]) -> None:
        """One step along gradients ``[K, ...]`` by name."""
        for rule in self._rules:
            rule.step(gradients)

    def keep(self, count: int) -> None:
        """Only the first ``count`` clients go on: gradients are ``[count, ...]`` from now on."""
        for rule in self._rules:
            rule.keep(count)


class _SGD:
    def __init__(self, parameters: Mapping[str, Tensor], sgd: SGD) -> None:
        self._parameters, self._sgd = dict(parameters), sgd
        self._momentum: dict[str, Tensor] = {}

    def step(self, gradients: Mapping[str, Tensor]) -> None:
        found = {name: gradients[name] for name in self._parameters}
        if self._sgd.clip is not None:
            found = dict(zip(found, clipped(list(found.values()), self._sgd.clip), strict=True))
        for name, parameter in self._parameters.items():
            descend(self._sgd, parameter, found[name], self._momentum, name)

    def keep(self, count: int) -> None:
        self._parameters = {name: parameter[:count] for name, parameter in self._parameters.items()}
        self._momentum = {name: velocity[:count] for name, velocity in self._momentum.items()}


class _AdamW:
    """Torch's, which moves every number by itself, so that clients may stand in one tensor."""

    def __init__(self, parameters: Mapping[str, Tensor], adam: AdamW) -> None:
        self._parameters = {name: nn.Parameter(parameter) for name, parameter in parameters.items()}
        self._optimizer = torch.optim.AdamW(self._parameters.values(), lr=adam.lr, weight_decay=adam.weight_decay)

    def step(self, gradients: Mapping[str, Tensor]) -> None:
        for name, parameter in self._parameters.items():
            parameter.grad = gradients[name]
        self._optimizer.step()
        self._optimizer.zero_grad()

    def keep(self, count: int) -> None:
        for parameter in self._parameters.values():
            parameter.data = parameter.data[:count]
            state = self._optimizer.state[parameter]
            for name, value in state.items():
                state[name] = value[:count] if isinstance(value, Tensor) and value.dim() else value


def clipped(gradients: Sequence[Tensor], clip: float) -> list[Tensor]:
    """Gradients ``[K, ...]``, scaled down for every client whose gradient, over all tensors, is above ``clip``."""
    squares = torch.stack([g.flatten(1).double().square().sum(dim=1) for g in gradients])
    norm = squares.sum(dim=0).sqrt()
    scale = torch.where(norm > clip, clip / norm, torch.ones_like(norm))
    return [g * scale.to(g.dtype).reshape(-1, *[1] * (g.dim() - 1)) for g in gradients]
