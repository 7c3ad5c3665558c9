"""Losses that methods share. Means run over the real samples of a batch."""

from torch import Tensor
from torch.nn import functional

from manyheads.contract.data import Batch


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
