import pytest
import torch
import toys
from torch import nn

from manyheads.contract import SGD, Part, Tree
from manyheads.errors import RunError
from manyheads.local.network import Network


@pytest.fixture
def slope():
    head = nn.Linear(1, 1, bias=False)
    nn.init.ones_(head.weight)
    return Network({"backbone": nn.Flatten(), "head": head})


def answer(m, b):
    return {"answer": b.mean(m.head(m.backbone(b.x)).squeeze(1))}


def descend(tree, b, grad):
    gradient, _ = grad(answer, tree, b)
    return tree.descend(gradient, 0.1)


def test_a_step_by_hand(slope):
    ctx = toys.context(slope, epochs=2)
    tree = ctx.scan(slope.initial, descend, toys.data([1, 2, 3]))
    assert tree["head.weight"].item() == pytest.approx(1 - 2 * 0.2, rel=1e-6)
    assert slope.initial["head.weight"].item() == 1.0
    assert ctx.trace == [{"answer": pytest.approx((2 + 1.6) / 2)}]


def test_the_gradient_and_the_loss_by_hand(slope):
    found = []

    def step(tree, b, grad):
        found.append(grad(answer, tree, b))
        return tree

    toys.context(slope).scan(slope.initial, step, toys.data([1, 2, 6]))
    ((gradient, value),) = found
    assert {name: g.tolist() for name, g in gradient.items()} == {"head.weight": [[3.0]]}
    assert value.item() == 3.0


def test_a_scan_of_sgd_is_a_fit():
    for options in ({}, {"model__name": "resnet8", "model__width": 2}, {"model__dropout": 0.5}):
        stage = toys.setting(**options)
        ctx, data, loss = stage.client(1, 0), stage.parties.train(0), stage.algorithm.loss

        def step(tree, b, grad, ctx=ctx, loss=loss):
            return tree.descend(grad(loss, tree, b)[0], ctx.sgd.lr)

        scanned = ctx.scan(stage.network.initial, step, data, epochs=range(1, 3))
        fitted = ctx.fit(stage.network.initial, loss, data, epochs=range(1, 3))
        assert scanned.map(lambda t: t.contiguous()) == fitted
        assert fitted != stage.network.initial


def test_a_scan_leaves_its_first_carry_alone():
    stage = toys.setting(model__name="resnet8", model__width=2)
    before = stage.network.initial.clone()
    ctx, loss = stage.client(0, 0), stage.algorithm.loss

    def step(carry, b, grad):
        tree, count = carry
        return tree.descend(grad(loss, tree, b)[0], 0.1), count + 1

    tree, count = ctx.scan((stage.network.initial, 0), step, stage.parties.train(0))
    assert stage.network.initial == before
    assert count == ctx.steps(stage.parties.train(0))
    moved = {name for name, tensor in tree.items() if not torch.equal(tensor, before[name])}
    assert any("running_mean" in name for name in moved)
    counted = tree["backbone.bn1.num_batches_tracked"].item()
    assert counted == count


def test_only_what_is_trained_gets_a_gradient():
    stage = toys.setting()
    found = []

    def step(tree, b, grad):
        found.append(grad(stage.algorithm.loss, tree, b, Part.HEAD)[0])
        return tree

    stage.client(0, 1).scan(stage.network.initial, step, stage.parties.train(1), epochs=1)
    assert set(found[0]) == {"head.weight", "head.bias"}


def test_wide_steps_get_several_batches(slope):
    def groups(n, **options):
        seen = []

        def step(carry, batches, grad):
            seen.append([b.rows.tolist() for b in batches])
            return carry

        toys.context(slope, batch=2).scan(0, step, toys.data(range(n)), **options)
        return seen

    for three in groups(10, width=3, epochs=2):
        assert len(three) == 3
    first = groups(10, width=3, epochs=1)  # five batches: three, then two and the first again
    assert len(first) == 2
    assert first[1][2] == first[0][0]
    assert sorted(row for batch in first[0] + first[1][:2] for row in batch) == list(range(10))
    assert groups(1, width=2) == [[[0], [0]]]
    assert len(groups(10, width=2, steps=4)) == 4
    assert groups(10, width=2, steps=4)[:3] == groups(10, width=2, epochs=1)


def test_a_tree_of_some_parts_has_a_gradient_of_its_own():
    stage = toys.setting()
    ctx = stage.client(0, 1)

    def alone(m, b):
        return {"norm": m.params["head.bias"].sum()}

    def step(carry, b, grad):
        whole, head = carry
        whole_gradient, _ = grad(stage.algorithm.loss, whole, b)
        head_gradient, _ = grad(alone, head, b)
        return whole.descend(whole_gradient, 0.1), head.descend(head_gradient, 1.0)

    head = ctx.take(ctx.initial, Part.HEAD)
    whole, after = ctx.scan((ctx.initial, head), step, stage.parties.train(1), epochs=1)
    assert whole.map(lambda t: t.contiguous()) == ctx.fit(
        ctx.initial, stage.algorithm.loss, stage.parties.train(1), epochs=1, optim=SGD(0.1)
    )
    torch.testing.assert_close(after["head.bias"], head["head.bias"] - 1)
    assert torch.equal(after["head.weight"], head["head.weight"])


def test_a_loss_that_is_not_finite_stops(slope):
    def step(tree, b, grad):
        return Tree({"head.weight": grad(answer, tree * float("inf"), b)[0]["head.weight"]})

    with pytest.raises(RunError, match="round 0, client 0: loss term 'answer' is inf"):
        toys.context(slope).scan(slope.initial, step, toys.data([1, 2]))
