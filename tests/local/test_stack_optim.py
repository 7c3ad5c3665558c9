"""Stacked optimizers, against numbers worked out by hand and against each client alone."""

import pytest
import torch
import toys
from torch import nn

from manyheads.contract import SGD, AdamW, Part
from manyheads.local.network import Network
from manyheads.local.optim import Descent, descend
from manyheads.local.stacked.optim import StackedDescent, clipped
from manyheads.models import SplitModel

NETWORK = Network(SplitModel(nn.Linear(1, 4), nn.Linear(4, 2)).parts())


def test_every_client_is_clipped_by_its_own_norm():
    a, b = clipped([torch.tensor([[3.0], [0.3], [0.0]]), torch.tensor([[4.0], [0.4], [0.0]])], 1.0)
    assert torch.cat([a, b], dim=1).tolist() == [
        [pytest.approx(0.6), pytest.approx(0.8)],
        [pytest.approx(0.3), pytest.approx(0.4)],
        [0, 0],
    ]


def test_momentum_by_hand():
    w = {"head.weight": torch.tensor([[1.0], [2.0]])}
    descent = StackedDescent(toys.context(NETWORK), w, SGD(0.1, momentum=0.5), frozenset())
    descent.step({"head.weight": torch.tensor([[1.0], [4.0]])})  # velocity 1 and 4
    descent.keep(1)
    descent.step({"head.weight": torch.tensor([[1.0]])})  # velocity 1.5; the second client is done
    assert w["head.weight"].flatten().tolist() == [pytest.approx(1 - 0.1 - 0.15), pytest.approx(2 - 0.4)]


def test_a_step_of_sgd_by_hand():
    sgd, w, velocities = SGD(0.5, momentum=0.5, weight_decay=0.25), torch.tensor([2.0]), {}
    descend(sgd, w, torch.tensor([1.0]), velocities, "w")  # 1 + 0.25 * 2
    assert (w.item(), velocities["w"].item()) == (2 - 0.75, 1.5)
    descend(sgd, w, torch.tensor([1.0]), velocities, "w")  # 0.5 * 1.5 + 1 + 0.25 * 1.25
    assert (w.item(), velocities["w"].item()) == (1.25 - 1.03125, 2.0625)
    still = torch.tensor([1.0])
    descend(SGD(0.5), w, still, velocities, "w")
    assert (w.item(), still.item(), velocities["w"].item()) == (0.21875 - 0.5, 1.0, 2.0625)


@pytest.mark.parametrize("sgd", [SGD(0.1), SGD(0.1, momentum=0.9, weight_decay=0.1)])
def test_one_client_in_a_stack_has_the_bits_of_serial(sgd):
    draw = torch.Generator().manual_seed(1)
    stacked = {name: tensor[None].clone() for name, tensor in NETWORK.initial.items()}
    alone = [(name, nn.Parameter(tensor.clone())) for name, tensor in NETWORK.initial.items()]
    many = StackedDescent(toys.context(NETWORK), stacked, sgd, frozenset())
    one = Descent(toys.context(NETWORK), alone, sgd)
    for _ in range(3):
        gradients = {name: torch.randn(p.shape, generator=draw) for name, p in alone}
        many.step({name: gradient[None].clone() for name, gradient in gradients.items()})
        one.step(list(gradients.values()))
    for name, parameter in alone:
        assert torch.equal(stacked[name][0], parameter)


@pytest.mark.parametrize(
    "optim",
    [
        SGD(0.1, momentum=0.9, weight_decay=0.1, clip=0.5),
        AdamW(0.1, weight_decay=0.1),
        {Part.HEAD: SGD(0.3, clip=0.1), Part.BACKBONE: AdamW(0.01)},
    ],
)
def test_optimizers_do_with_each_client_what_they_do_alone(optim):
    draw = torch.Generator().manual_seed(1)
    names, unused, steps, clients = list(NETWORK.initial), "head.bias", 4, 3
    gradients = [
        {n: torch.randn(clients, *NETWORK.initial[n].shape, generator=draw) for n in names} for _ in range(steps)
    ]
    stacked = {name: torch.stack([NETWORK.initial[name]] * clients) for name in names}
    descent = StackedDescent(toys.context(NETWORK), stacked, optim, frozenset({unused}))
    for number, step in enumerate(gradients):
        here = clients - (number >= 2)  # the last client has two steps
        descent.keep(here)
        descent.step({name: gradient[:here] for name, gradient in step.items()})
    for k in range(clients):
        alone = [(name, nn.Parameter(NETWORK.initial[name].clone())) for name in names]
        each = Descent(toys.context(NETWORK), alone, optim)
        for step in gradients[: 2 if k == clients - 1 else steps]:
            each.step([None if name == unused else step[name][k].clone() for name in names])
        for name, parameter in alone:
            assert torch.allclose(stacked[name][k], parameter, rtol=1e-6, atol=1e-7), (k, name)
        assert torch.equal(stacked[unused][k], NETWORK.initial[unused])
