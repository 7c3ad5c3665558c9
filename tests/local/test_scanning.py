"""What ``scan`` owns: the buffers that it writes to. And what ``grad`` gives: masks, terms."""

import pytest
import torch
import toys
from torch import nn

from manyheads.algorithms.fedavg import FedAvg
from manyheads.contract import Broadcast, Part, PrivateState
from manyheads.local.client import ClientRoom, Task
from manyheads.local.network import Network
from manyheads.models import Dropout

RESNET = {"model__name": "resnet8", "model__width": 2}
COUNTER = "backbone.bn1.num_batches_tracked"


@pytest.fixture(scope="module")
def stage():
    return toys.setting(**RESNET)


@pytest.fixture
def ctx(stage):
    return stage.client(0, 3)


def fitted(stage):
    """What the same steps give without anything else."""
    return stage.client(0, 3).fit(stage.network.initial, stage.algorithm.loss, stage.parties.train(3))


def plain(tree):
    return tree.map(lambda t: t.contiguous())


# buffers


def test_a_gradient_at_another_tree_leaves_it_alone(stage, ctx):
    other, initial = stage.network.initial.clone(), stage.network.initial.clone()
    before = other.clone()

    def step(tree, b, grad):
        gradient, _ = grad(stage.algorithm.loss, tree, b)
        for elsewhere in (other, ctx.initial, b.constant):
            grad(stage.algorithm.loss, elsewhere, b)
        return tree.descend(gradient, ctx.sgd.lr)

    constant = stage.network.initial.clone()
    tree = ctx.scan(ctx.initial, step, stage.parties.train(3).given(constant=constant))
    assert other == constant == before
    assert stage.network.initial == initial
    assert plain(tree) == fitted(stage)


class AtReceived(FedAvg):
    """Takes a gradient at the model that the server sent, as SCAFFOLD's option I does."""

    def train(self, model, received, private, data, ctx):
        def step(tree, b, grad):
            grad(self.loss, received.model, b)
            return tree.descend(grad(self.loss, tree, b)[0], ctx.sgd.lr)

        return ctx.scan(model, step, data)


def test_a_gradient_at_the_received_model_changes_no_server():
    stage = toys.setting(AtReceived(), **RESNET)
    server = stage.algorithm.init_server(stage.server(0))
    before, initial = server.to_bytes(), stage.network.initial.clone()
    received = stage.algorithm.broadcast(server, 0, stage.server(0))
    ClientRoom(stage).update(Task(0, 0, received, None), False)
    assert server.to_bytes() == before
    assert received.to_bytes() == Broadcast(model=server.model).to_bytes()
    assert stage.network.initial == initial
    assert toys.run(AtReceived(), **RESNET).server == toys.run(FedAvg(), **RESNET).server


def test_a_tree_that_a_step_brings_in_is_copied(stage, ctx):
    kept = PrivateState(model=stage.network.initial.clone())
    before = kept.to_bytes()

    def step(tree, b, grad):
        gradient, _ = grad(stage.algorithm.loss, tree, b)
        counts.append(tree[COUNTER].item())
        return kept.model.descend(gradient, ctx.sgd.lr)  # shares its buffers

    counts = []
    ctx.scan(ctx.initial, step, stage.parties.train(3))
    assert kept.to_bytes() == before
    assert counts == [1, 1, 1, 1]  # each time it starts from what is kept


def test_a_mixture_shares_no_buffer_with_what_it_is_mixed_of(stage, ctx):
    def step(carry, b, grad):  # APFL: one model for all, one of one's own, and their mixture
        w, v = carry
        w_gradient, _ = grad(stage.algorithm.loss, w, b)
        v_gradient, _ = grad(stage.algorithm.loss, v.lerp(w, 0.5), b)
        return w.descend(w_gradient, ctx.sgd.lr), v.descend(v_gradient * 0.5, ctx.sgd.lr)

    w, v = ctx.scan((ctx.initial, ctx.initial), step, stage.parties.train(3))
    assert plain(w) == fitted(stage)
    assert w[COUNTER].item() == ctx.steps(stage.parties.train(3))
    assert v[COUNTER].item() == 0  # no gradient was taken at it


def test_a_mapping_is_no_carry(stage, ctx):
    for carry in ({"w": ctx.initial}, (1, [ctx.initial])):
        with pytest.raises(TypeError, match=r"the carry of a scan is a tree, .* not (dict|list)"):
            ctx.scan(carry, lambda carry, b, grad: carry, stage.parties.train(3))


# masks


@pytest.fixture
def dropping():
    return Network({"backbone": nn.Sequential(nn.Flatten(), Dropout(0.5)), "head": nn.Linear(64, 2)})


def masks(network, *draws, steps=1):
    """The masks of some calls of ``grad``, step by step."""
    drawn = []

    def loss(m, b):
        z = m.backbone(b.x)
        drawn.append(z != 0)
        return {"sum": m.head(z).sum()}

    def step(tree, b, grad):
        for draw in draws:
            grad(loss, tree, b, *draw)
        return tree

    ctx = toys.context(network, epochs=steps)
    ctx.scan(network.initial, step, toys.data(torch.ones(4, 1, 8, 8)))
    return drawn


def test_calls_with_one_draw_have_one_mask(dropping):
    part = Part.ALL
    up, down, other, free, freer = masks(dropping, (part, 1), (part, 1), (part, 2), (), ())
    assert torch.equal(up, down)
    found = [up, other, free, freer]
    assert all(not torch.equal(a, b) for i, a in enumerate(found) for b in found[:i])
    one, two = masks(dropping, (part, 1), steps=2)
    assert torch.equal(one, up)
    assert not torch.equal(two, one)
    assert torch.equal(masks(dropping, ())[0], free)  # numbered draws take nothing from the step's stream


def test_a_finite_difference_is_that_of_one_function(dropping):
    # the loss is linear in the head, so its gradient is the same at both ends where the masks are
    def loss(m, b):
        return {"sum": m.head(m.backbone(b.x)).sum()}

    def step(tree, b, grad):
        up, down = (grad(loss, tree * scale, b, Part.ALL, 0)[0] for scale in (1.5, 0.5))
        assert up == down
        return tree

    toys.context(dropping).scan(dropping.initial, step, toys.data(torch.ones(4, 1, 8, 8)))


# the trace


def test_a_term_is_averaged_over_the_calls_that_have_it(dropping):
    def one(m, b):
        return {"one": m.head(m.backbone(b.x)).sum() * 0 + 1}

    def two(m, b):
        return {"two": m.head(m.backbone(b.x)).sum() * 0 + 2}

    def step(count, b, grad):
        grad(one, dropping.initial, b)
        grad(two, dropping.initial, b)
        if count == 0:
            grad(one, dropping.initial, b)
        return count + 1

    ctx = toys.context(dropping, epochs=3)
    assert ctx.scan(0, step, toys.data(torch.ones(4, 1, 8, 8))) == 3
    assert ctx.trace == [{"one": 1.0, "two": 2.0}]
