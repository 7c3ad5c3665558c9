"""A global model's answers, shifted by what a client knows of its labels."""

from functools import partial

import torch
from torch import Tensor

from manyheads.contract import Model, Predictor
from manyheads.contract.model import Logits

ABSENT = 0.1  # a class without images counts as so many: it is unlikely, not impossible


def with_prior(predictor: Predictor, y: Tensor, classes: int) -> Predictor:
    """A predictor whose logits have the log of the client's class shares added: Bayes' rule under label shift.

    It costs no training, and is what a personal model has to beat. It is at its best where train and test labels of a
    client are drawn alike, as in this package's partitions.

    Args:
        predictor: of a model that was trained on all classes alike.
        y: the client's train labels, ``[n]``.
        classes: how many there are.
    """
    counts = torch.bincount(y, minlength=classes).double().clamp(min=ABSENT)
    return Predictor(predictor.tree, partial(_shifted, logits=predictor.logits, shift=(counts / counts.sum()).log()))


def _shifted(m: Model, x: Tensor, *, logits: Logits, shift: Tensor) -> Tensor:
    answer = logits(m, x)
    return answer + shift.to(answer)
