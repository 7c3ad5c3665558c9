"""Losses that methods share. Means run over the real samples of a batch."""

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional

from manyheads.contract.data import Batch
from manyheads.contract.tree import Tree


def ce(logits: Tensor, b: Batch) -> Tensor:
    """Mean softmax cross-entropy of ``logits`` ``[n, classes]`` against ``b.y``."""
    return b.mean(each_ce(logits, b))


def each_ce(logits: Tensor, b: Batch) -> Tensor:
    """Softmax cross-entropy of every sample, ``[n]``."""
    return functional.cross_entropy(logits, b.y, reduction="none")


def kd(teacher: Tensor, student: Tensor, b: Batch, temperature: float) -> Tensor:
    """Mean distillation, ``T^2 KL(softmax(teacher / T) || softmax(student / T))`` (Hinton et al., 2015).

    Args:
        teacher: logits ``[n, classes]``, without gradient.
        student: logits ``[n, classes]``.
        b: the batch.
        temperature: T > 0.
    """
    return b.mean(each_kl(teacher, student, temperature))


def each_kl(teacher: Tensor, student: Tensor, temperature: float) -> Tensor:
    """Distillation of every sample, ``[n]``; see ``kd``."""
    target = functional.log_softmax(teacher / temperature, dim=1)
    output = functional.log_softmax(student / temperature, dim=1)
    return temperature**2 * (target.exp() * (target - output)).sum(dim=1)


def mse(features: Tensor, target: Tensor, b: Batch) -> Tensor:
    """Squared difference of ``[n, d]``, mean over dimensions and samples."""
    return b.mean((features - target).square().mean(dim=1))


def squared_distance(params: Tree, reference: Tree) -> Tensor:
    """``||params - reference||^2`` over the tensors of ``params``; ``reference`` may hold more."""
    total = torch.zeros(())
    for name, tensor in params.items():
        total = total + _apart(tensor, reference[name])
    return total


class _SquaredDistance(torch.autograd.Function):
    """As ``(a - b).square().sum()``, in fewer passes over memory: it is paid at every step, for all weights."""

    generate_vmap_rule = True

    @staticmethod
    def forward(a: Tensor, b: Tensor) -> Tensor:
        norm: Tensor = torch.linalg.vector_norm(a - b)
        return norm.square()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None]:
        a, b = ctx.saved_tensors
        of_a = (a - b) * (2 * grad)
        return of_a, -of_a if ctx.needs_input_grad[1] else None


_apart = cast(Callable[[Tensor, Tensor], Tensor], _SquaredDistance.apply)
