import pytest
import torch
import toys
from torch import nn

from manyheads.contract import SGD, AdamW, Part
from manyheads.local.network import Network
from manyheads.local.optim import Descent


def descent(optim, *values):
    """A descent over parameters that start at ``values``, and these."""
    parts = [nn.Parameter(torch.tensor(value)) for value in values]
    ctx = toys.context(Network({"backbone": nn.Flatten(), "head": nn.Linear(1, 1)}))
    return Descent(ctx, list(zip(("head.weight", "head.bias"), parts, strict=True)), optim), parts


def test_clipping_measures_the_whole_gradient():
    rule, parts = descent(SGD(1.0, clip=2.5), [0.0], [0.0, 0.0])
    rule.step([torch.tensor([3.0]), torch.tensor([0.0, 4.0])])
    torch.testing.assert_close([p.detach().tolist() for p in parts], [[-1.5], [0.0, -2.0]])


@pytest.mark.parametrize("optim", [SGD(0.1, momentum=0.9, weight_decay=0.5), AdamW(0.1, weight_decay=0.5)])
def test_a_parameter_without_gradient_stays(optim):
    # neither decay nor the momentum of earlier steps moves it
    rule, parts = descent(optim, [1.0], [1.0])
    rule.step([torch.ones(1), torch.ones(1)])
    before = [p.item() for p in parts]
    rule.step([torch.ones(1), None])
    assert parts[1].item() == before[1] != 1.0
    assert parts[0].item() != before[0]


def test_adam_by_hand():
    # the first step goes by the sign of the gradient; the decay takes lr times its weight of the parameter
    rule, parts = descent(AdamW(0.1, weight_decay=0.5), [1.0], [2.0])
    rule.step([torch.tensor([3.0]), torch.tensor([-0.2])])
    assert [p.item() for p in parts] == pytest.approx([0.95 - 0.1, 1.9 + 0.1], rel=1e-5)
    # m = 0.9 * 0.3 + 0.1 * 1, v = 0.999 * 0.009 + 0.001 * 1, each without its bias
    rule.step([torch.tensor([1.0]), None])
    m, v = 0.37 / 0.19, 0.009991 / 0.001999
    assert parts[0].item() == pytest.approx(0.85 * 0.95 - 0.1 * m / v**0.5, rel=1e-5)


def test_each_part_has_its_optimizer():
    rule, parts = descent({Part.BACKBONE: SGD(9.0), Part.ALL: SGD(0.5)}, [1.0], [1.0])
    rule.step([torch.ones(1), torch.ones(1)])
    assert [p.item() for p in parts] == [0.5, 0.5]
    with pytest.raises(ValueError, match=r"no optimizer was given for head\.weight"):
        descent({Part.BACKBONE: SGD(0.1)}, [1.0], [1.0])
