import math

import pytest
import torch
from torch.func import grad, vmap

from manyheads.contract import Batch, Tree
from manyheads.local.losses import ce, kd, mse, squared_distance


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


def test_squared_distance_by_hand():
    params = Tree({"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([[3.0]])})
    reference = Tree({"a": torch.tensor([0.0, 0.0]), "b": torch.tensor([[1.0]]), "running_mean": torch.tensor([9.0])})
    assert squared_distance(params, reference).item() == 1 + 4 + 4


def test_the_gradient_of_the_squared_distance_is_twice_the_difference_in_any_layout_and_at_zero():
    rng = torch.Generator().manual_seed(0)
    a = torch.randn(4, 3, 5, 5, generator=rng).to(memory_format=torch.channels_last).requires_grad_()
    same = torch.randn(3, generator=rng).requires_grad_()
    reference = torch.randn(4, 3, 5, 5, generator=rng)
    value = squared_distance(Tree({"a": a, "same": same}), Tree({"a": reference, "same": same.detach()}))
    assert value.item() == pytest.approx(float((a.detach() - reference).double().square().sum()), rel=1e-6)
    for _ in range(2):  # nothing of the first pass is used up
        of_a, of_same = torch.autograd.grad(0.5 * value, (a, same), retain_graph=True)
        assert torch.equal(of_a, a.detach() - reference)
        assert torch.equal(of_same, torch.zeros(3))


def test_a_reference_that_is_trained_gets_the_opposite_gradient():
    a, b = torch.tensor([1.0, 5.0], requires_grad=True), torch.tensor([2.0, 2.0], requires_grad=True)
    of_a, of_b = torch.autograd.grad(squared_distance(Tree({"a": a}), Tree({"a": b})), (a, b))
    assert of_a.tolist() == [-2.0, 6.0]
    assert of_b.tolist() == [2.0, -6.0]


def test_the_squared_distance_under_torch_func():
    a, b, scale = torch.tensor([[1.0, 5.0], [0.0, 3.0]]), torch.tensor([2.0, 2.0]), torch.tensor([1.0, 10.0])

    def loss(a, scale):
        return scale * squared_distance(Tree({"a": a}), Tree({"a": b}))

    assert vmap(grad(loss))(a, scale).tolist() == [[-2.0, 6.0], [-40.0, 20.0]]
    assert vmap(grad(loss), (None, 0))(a[0], scale).tolist() == [[-2.0, 6.0], [-20.0, 60.0]]
