import math

import pytest
import torch

from manyheads.contract import Batch
from manyheads.local.losses import ce, kd, mse


def batch(y, mask=None):
    return Batch(torch.zeros(len(y), 1, 1, 1), torch.tensor(y), torch.arange(len(y)), {}, mask)


PADDED = torch.tensor([1.0, 0.0])


def test_cross_entropy_by_hand():
    # softmax of (0, log 3) is (1/4, 3/4)
    logits = torch.tensor([[0.0, math.log(3)], [0.0, 0.0]])
    assert ce(logits, batch([0, 1])).item() == pytest.approx((math.log(4) + math.log(2)) / 2, rel=1e-6)
    assert ce(logits, batch([1, 1], PADDED)).item() == pytest.approx(math.log(4 / 3), rel=1e-6)


def test_distillation_by_hand():
    # at T = 2 the teacher is (1/4, 3/4) and the student (1/2, 1/2); a second sample agrees with its teacher
    teacher = torch.tensor([[0.0, 2 * math.log(3)], [5.0, 1.0]])
    student = torch.tensor([[1.0, 1.0], [7.0, 3.0]])
    divergence = 0.25 * math.log(0.25 / 0.5) + 0.75 * math.log(0.75 / 0.5)
    assert kd(teacher, student, batch([0, 0]), 2.0).item() == pytest.approx(4 * divergence / 2, rel=1e-6)
    assert kd(teacher, student, batch([0, 0], PADDED), 2.0).item() == pytest.approx(4 * divergence, rel=1e-6)


def test_distillation_pulls_the_student_to_the_teacher():
    # d/d student = T (softmax(student / T) - softmax(teacher / T))
    teacher = torch.tensor([[0.0, 2 * math.log(3)]])
    student = torch.zeros(1, 2, requires_grad=True)
    kd(teacher, student, batch([0]), 2.0).backward()
    torch.testing.assert_close(student.grad, torch.tensor([[2 * (0.5 - 0.25), 2 * (0.5 - 0.75)]]))


def test_mean_squared_error_by_hand():
    features, target = torch.tensor([[1.0, 3.0], [0.0, 0.0]]), torch.tensor([[0.0, 1.0], [2.0, 0.0]])
    assert mse(features, target, batch([0, 0])).item() == ((1 + 4) / 2 + 4 / 2) / 2
    assert mse(features, target, batch([0, 0], PADDED)).item() == 2.5
