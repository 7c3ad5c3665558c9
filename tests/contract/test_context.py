import math

import pytest
import torch
import toys
from torch import nn

from manyheads.contract import ClientContext, Part, ServerContext
from manyheads.contract.context import buffer_policy, steps_an_epoch
from manyheads.errors import InputError
from manyheads.local.network import Network
from manyheads.local.rows import CHUNK


@pytest.fixture
def network():
    backbone = nn.Sequential(nn.Flatten(), nn.Linear(1, 1, bias=False), nn.BatchNorm1d(1))
    return Network({"backbone": backbone, "head": nn.Linear(1, 2)})


@pytest.fixture
def server(network):
    return ServerContext(**vars(toys.context(network)) | {"party": -1})


@pytest.mark.parametrize(
    ("n", "batch", "steps"),
    [(65, 64, 1), (66, 64, 2), (64, 64, 1), (128, 64, 2), (129, 64, 2), (1, 64, 1), (3, 64, 1), (3, 1, 2), (1, 1, 1)],
)
def test_steps_an_epoch(network, n, batch, steps):
    assert steps_an_epoch(n, batch) == steps
    ctx = toys.context(network, batch=batch, epochs=3)
    assert ctx.steps(toys.data([0.0] * n)) == 3 * steps
    assert ctx.steps(toys.data([0.0] * n), epochs=1) == steps
    other = toys.context(network, batch=7, epochs=3)
    assert other.steps(toys.data([0.0] * n), batch=batch) == 3 * steps
    assert other.steps(toys.data([0.0] * n), 2, batch) == 2 * steps


def test_take_follows_the_tags(network):
    ctx = toys.context(network)
    assert set(ctx.take(ctx.initial, Part.HEAD)) == {"head.weight", "head.bias"}
    assert set(ctx.take(ctx.initial, Part.BUFFER)) == {
        f"backbone.2.{name}" for name in ("running_mean", "running_var", "num_batches_tracked")
    }
    assert set(ctx.take(ctx.initial, Part.NORM - Part.BUFFER)) == {"backbone.2.weight", "backbone.2.bias"}
    assert set(ctx.take(ctx.initial, Part.BACKBONE - Part.NORM)) == {"backbone.1.weight"}
    assert ctx.take(ctx.initial, Part.ALL) == ctx.initial


def test_class_means_by_hand():
    network = Network({"backbone": nn.Flatten(), "head": nn.Linear(1, 3)})
    ctx = toys.context(network, classes=3)
    means, counts = ctx.class_means(network.initial, toys.data([1.0, 2.0, 6.0], [2, 0, 2]))
    assert means.tolist() == [[2.0], [0.0], [3.5]]
    assert counts.tolist() == [1, 0, 2]
    assert means.dtype == torch.float32


def test_class_means_are_taken_in_eval_mode_and_not_augmented(network):
    ctx = toys.context(network)
    data = toys.data([1.0, 3.0]).map(lambda b, generator: b.replace(x=b.x + 100))
    means, _ = ctx.class_means(network.initial, data)
    weight = network.initial["backbone.1.weight"].item()
    assert means[0].item() == pytest.approx(2 * weight / math.sqrt(1 + 1e-5), rel=1e-6)


def test_a_function_of_every_image(network):
    data = toys.data(range(700)).map(lambda b, generator: b.replace(x=b.x + 100))
    asked = []

    def fn(x):
        asked.append(len(x))
        return x.flatten(1) * torch.tensor([1.0, 2.0])

    values = toys.context(network).rowwise(fn, data)
    assert torch.equal(values, torch.arange(700.0)[:, None] * torch.tensor([1.0, 2.0]))
    assert asked == [CHUNK, CHUNK, 192]  # the rest is padded


def test_streams_of_a_context_have_its_round_and_party(network):
    def drawn(**changes):
        return torch.rand(3, generator=toys.context(network, **changes).rng("noise", 1)).tolist()

    others = [drawn(round=1), drawn(party=1), drawn(seed=1)]
    assert drawn() == drawn(epochs=9, batch=3)
    assert len({tuple(x) for x in [drawn(), *others]}) == 4


def test_client_contexts_know_nothing_of_the_server(network):
    ctx = toys.context(network)
    assert isinstance(ctx, ClientContext)
    for name in ("auxiliary", "server_data", "average"):
        assert not hasattr(ctx, name)


def test_a_missing_auxiliary_set_is_one_line(server):
    with pytest.raises(InputError, match=r"^data\.auxiliary = 0.*$"):
        _ = server.auxiliary


@pytest.mark.parametrize(
    ("policy", "down", "up"),
    [("average", False, False), ("private", True, True), ("reset", False, True)],
)
def test_buffer_policies(policy, down, up):
    kept_down, kept_up = buffer_policy(policy)
    buffer, weight = frozenset({"backbone", "norm", "buffer"}), frozenset({"backbone", "norm"})
    assert (kept_down.holds(buffer), kept_up.holds(buffer)) == (down, up)
    assert not kept_down.holds(weight)
    assert not kept_up.holds(weight)
