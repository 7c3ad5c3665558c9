import pytest
import torch
import toys
from torch import nn

from manyheads.contract import SGD, AdamW, Part
from manyheads.local.gradients import Pull
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


def test_a_pull_by_hand():
    # 0.5 of the way along 3 + 4 (1 - 2) and along 3 + 0.2 * 1 + 4 (1 - 2)
    for decay, expected in ((0.0, 1.5), (0.2, 1.4)):
        rule, parts = descent(SGD(0.5, weight_decay=decay), [1.0], [1.0])
        rule.step([torch.tensor([3.0]), None], [Pull(0, 4.0, torch.tensor([2.0]))])
        assert [p.item() for p in parts] == pytest.approx([expected, 1.0])


OPTIMIZERS = [SGD(0.1), SGD(0.1, weight_decay=0.5), SGD(0.1, momentum=0.9), SGD(0.1, clip=0.3), AdamW(0.1)]


@pytest.mark.parametrize("optim", OPTIMIZERS)
@pytest.mark.parametrize("gradient", [torch.tensor([0.3, -0.2]), None])
@pytest.mark.parametrize("twice", [False, True])
def test_a_pull_is_a_piece_of_the_gradient(optim, gradient, twice):
    near, far = torch.tensor([1.5, 0.0]), torch.tensor([-3.0, 4.0])
    pulls = [Pull(0, 0.7, near), Pull(0, 0.2, far)] if twice else [Pull(0, 0.7, near)]
    (ours, parts), (theirs, expected) = (descent(optim, [1.0, 2.0], [1.0]) for _ in range(2))
    for _ in range(3):
        p = expected[0].detach()
        whole = 0.7 * (p - near) + (0.2 * (p - far) if twice else 0) + (0 if gradient is None else gradient)
        theirs.step([whole, torch.ones(1)])
        ours.step([gradient, torch.ones(1)], pulls)
    torch.testing.assert_close([p.detach() for p in parts], [p.detach() for p in expected])


@pytest.mark.parametrize("optim", OPTIMIZERS)
def test_a_pull_leaves_alone_what_it_is_given(optim):
    rule, parts = descent(optim, [1.0], [2.0])
    gradient, reference = torch.tensor([3.0]), torch.tensor([2.0])
    rule.step([gradient, gradient], [Pull(0, 4.0, reference)])
    assert (gradient.item(), reference.item()) == (3.0, 2.0)
    before = parts[0].item()
    rule.step([None, None], [Pull(0, 4.0, torch.tensor([before]))])
    if not (isinstance(optim, AdamW) or optim.momentum or optim.weight_decay):
        assert parts[0].item() == before


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
