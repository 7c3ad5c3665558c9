"""What a method hands to a trainer, and what a trainer is: losses, optimizers, plans, step rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import mse_loss

from manyheads.contract.data import Batch, Data
from manyheads.contract.model import Model
from manyheads.contract.tree import Part, Tree

if TYPE_CHECKING:
    from manyheads.contract.context import Context

Carry = TypeVar("Carry")


@dataclass(frozen=True)
class Proximal:
    """A term of a loss, ``weight / 2 * ||params - reference||^2``, that holds parameters near a reference.

    It says no more than the tensor would, which it gives when it is called, but a trainer can go along its gradient,
    ``weight * (params - reference)``, in fewer passes over the weights than automatic differentiation takes. The value
    is only for the log: of a fit of 16 steps or more, it is the mean over 8 to 11 steps that are spread evenly.

    Attributes:
        weight: at least 0.
        params: parameters of the model that is trained, such as ``m.params.part("backbone")``.
        reference: what they are held near; it may have more tensors.
    """

    weight: float
    params: Tree
    reference: Tree

    def __call__(self) -> Tensor:
        """The term as a tensor, for automatic differentiation."""
        total = torch.zeros(())
        for name, tensor in self.params.items():
            total = total + mse_loss(tensor, self.reference[name], reduction="sum")  # quicker than its definition
        return self.weight / 2 * total

    def __mul__(self, factor: float) -> Proximal:
        """The term with a weight ``factor`` times as large."""
        return replace(self, weight=self.weight * factor)

    __rmul__ = __mul__


Terms = Mapping[str, Tensor | Proximal]
Loss = Callable[[Model, Batch], Terms]


@dataclass(frozen=True)
class SGD:
    """Plain stochastic gradient descent.

    Attributes:
        lr: step size, > 0.
        momentum: in [0, 1).
        weight_decay: L2, added to the gradient.
        clip: largest norm of the whole gradient; None leaves it as it is.
    """

    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    clip: float | None = None


@dataclass(frozen=True)
class AdamW:
    """Adam with decoupled weight decay (Loshchilov and Hutter, ICLR 2019).

    Attributes:
        lr: step size, > 0.
        weight_decay: in each step, a parameter shrinks by ``lr * weight_decay`` of itself.
    """

    lr: float
    weight_decay: float = 0.0


Optimizer = SGD | AdamW
Optim = Optimizer | Mapping[Part, Optimizer]


class Grad(Protocol):
    """The gradient of a loss at a tree, on one batch."""

    def __call__(
        self, loss: Loss, tree: Tree, b: Batch, trains: Part = ..., draw: int | None = None, /
    ) -> tuple[Tree, Tensor]:
        """The gradient for every trained parameter that the loss depends on, and the loss.

        One dropout stream serves all calls of a step in their order. Calls with the same ``draw`` get the same masks,
        as finite differences need.
        """


@dataclass(frozen=True)
class Plan:
    """Which samples a fit visits: numbered epochs of shuffled mini-batches, or so many steps of them.

    ``phase`` names the fit in the log and in errors.
    """

    epochs: range
    steps: int | None
    batch: int
    phase: str = ""


class Trainer(Protocol):
    """Runs what a method describes. Engines implement it; ``local.training`` is the reference."""

    def model(self, tree: Tree, /) -> Model:
        """``tree`` as a frozen model in eval mode."""

    def fit(self, ctx: Context, model: Tree, loss: Loss, data: Data, trains: Part, plan: Plan, optim: Optim, /) -> Tree:
        """See ``Context.fit``."""

    def scan(
        self,
        ctx: Context,
        carry: Carry,
        step: Callable[[Carry, Any, Grad], Carry],
        data: Data,
        plan: Plan,
        width: int,
        /,
    ) -> Carry:
        """See ``Context.scan``."""

    def gradient(self, ctx: Context, model: Tree, loss: Loss, data: Data, trains: Part, /) -> Tree:
        """See ``Context.gradient``."""

    def rowwise(self, fn: Callable[[Tensor], Tensor], data: Data, /) -> Tensor:
        """``fn`` of every sample's x, in large batches; ``[n, ...]``."""
