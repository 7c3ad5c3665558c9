"""Stacked optimizers, against numbers worked out by hand and against each client alone."""

import pytest
import torch
import toys
from torch import nn

from manyheads.contract import SGD, AdamW, Part
from manyheads.local.network import Network
from manyheads.local.optim import Descent
from manyheads.local.stack_optim import StackedDescent, clipped
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
