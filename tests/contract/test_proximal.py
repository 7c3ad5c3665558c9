import pytest
import torch
from torch.func import grad, vmap

from manyheads.contract import Proximal, Tree


def test_half_the_weight_times_the_squared_distance():
    params = Tree({"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([[3.0]])})
    reference = Tree({"a": torch.tensor([0.0, 0.0]), "b": torch.tensor([[1.0]]), "running_mean": torch.tensor([9.0])})
    assert Proximal(3.0, params, reference)().item() == 3 / 2 * (1 + 4 + 4)


def test_a_share_of_it():
    term = Proximal(3.0, Tree({"a": torch.tensor([2.0])}), Tree({"a": torch.tensor([0.0])}))
    assert (0.5 * term)().item() == (term * 0.5)().item() == 0.5 * term().item() == 3.0


def test_its_gradient_is_the_weighted_difference_in_any_layout_and_at_zero():
    rng = torch.Generator().manual_seed(0)
    a = torch.randn(4, 3, 5, 5, generator=rng).to(memory_format=torch.channels_last).requires_grad_()
    same = torch.randn(3, generator=rng).requires_grad_()
    reference = torch.randn(4, 3, 5, 5, generator=rng)
    value = Proximal(1.0, Tree({"a": a, "same": same}), Tree({"a": reference, "same": same.detach()}))()
    assert value.item() == pytest.approx(float((a.detach() - reference).double().square().sum()) / 2, rel=1e-6)
    for _ in range(2):  # nothing of the first pass is used up
        of_a, of_same = torch.autograd.grad(value, (a, same), retain_graph=True)
        assert torch.equal(of_a, a.detach() - reference)
        assert torch.equal(of_same, torch.zeros(3))


def test_under_torch_func():
    a, b, scale = torch.tensor([[1.0, 5.0], [0.0, 3.0]]), torch.tensor([2.0, 2.0]), torch.tensor([1.0, 10.0])

    def loss(a, scale):
        return scale * Proximal(2.0, Tree({"a": a}), Tree({"a": b}))()

    assert vmap(grad(loss))(a, scale).tolist() == [[-2.0, 6.0], [-40.0, 20.0]]
    assert vmap(grad(loss), (None, 0))(a[0], scale).tolist() == [[-2.0, 6.0], [-20.0, 60.0]]
