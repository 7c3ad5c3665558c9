"""Networks whose tensors are shared, tied, frozen, computed, or held where torch does not look for them."""

import copy

import pytest
import torch
import toys
from torch import nn

from manyheads.algorithms.fedper import FedPer
from manyheads.contract import Part
from manyheads.errors import InputError
from manyheads.local.network import Network
from manyheads.models import Dropout, SplitModel


class Tied(nn.Module):
    """Two layers with one weight between them."""

    def __init__(self):
        super().__init__()
        self.first, self.a, self.b = nn.Linear(64, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.b.weight = self.a.weight

    def forward(self, x):
        return self.b(torch.relu(self.a(self.first(x.flatten(1)))))


class Shared(Tied):
    """One layer under two names."""

    def __init__(self):
        super().__init__()
        self.b = self.a


class Listed(nn.Module):
    """A plain list decides which layers are called, in which order."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(64, 4), nn.Linear(4, 4)
        self.order = [self.a, torch.relu, self.b]

    def forward(self, x):
        x = x.flatten(1)
        for layer in self.order:
            x = layer(x)
        return x


class Recurrent(nn.Module):
    """A GRU over the rows of the image; it keeps its weights in a list as well."""

    def __init__(self):
        super().__init__()
        self.rows = nn.GRU(8, 4, batch_first=True)

    def forward(self, x):
        return self.rows(x[:, 0])[0][:, -1]


class Normed(nn.Module):
    """A weight that is computed from two others."""

    def __init__(self):
        super().__init__()
        self.layer = nn.utils.parametrizations.weight_norm(nn.Linear(64, 4))

    def forward(self, x):
        return self.layer(x.flatten(1))


class Frozen(nn.Module):
    """Its author wants only the second layer trained."""

    def __init__(self):
        super().__init__()
        self.fixed, self.a = nn.Linear(64, 4), nn.Linear(4, 4)
        self.fixed.requires_grad_(False)

    def forward(self, x):
        return self.a(torch.relu(self.fixed(x.flatten(1))))


class Unsaved(nn.Module):
    """Takes away a running mean that is in no state dict."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 4)
        self.register_buffer("mean", torch.zeros(4), persistent=False)

    def forward(self, x):
        z = self.layer(x.flatten(1))
        if self.training:
            with torch.no_grad():
                self.mean.mul_(0.5).add_(z.mean(0), alpha=0.5)
        return z - self.mean


unusual = pytest.mark.parametrize("kind", [Tied, Shared, Listed, Recurrent, Normed, Frozen, Unsaved])


def loss(m, b):
    return {"ce": nn.functional.cross_entropy(m.head(m.backbone(b.x)), b.y)}


def samples(seed=1):
    return toys.data(torch.randn(6, 1, 8, 8, generator=torch.Generator().manual_seed(seed)), [0, 1, 2, 3, 0, 1])


@unusual
def test_training_is_that_of_torch(kind):
    model = SplitModel(kind(), nn.Linear(4, 4))
    network = Network(copy.deepcopy(model).parts())
    data, x = samples(), samples().x(torch.arange(6))
    tree = toys.context(network, epochs=4, classes=4).fit(network.initial, loss, data)

    own = [p for p in model.parameters() if p.requires_grad]
    for _ in range(4):
        gradients = torch.autograd.grad(nn.functional.cross_entropy(model(x), data.y), own)
        with torch.no_grad():
            for parameter, gradient in zip(own, gradients, strict=True):
                parameter.sub_(gradient, alpha=0.1)
    assert set(tree) == {name for name, _ in (*model.named_parameters(), *model.named_buffers())} - {"backbone.mean"}
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(tree[name], parameter.detach())
        if parameter.requires_grad:
            assert not torch.equal(tree[name], network.initial[name])
    if kind is not Unsaved:  # what it remembers stays where it was trained
        bound = network.model(tree)
        torch.testing.assert_close(bound.head(bound.backbone(x)), model.eval()(x).detach())


@unusual
def test_two_models_of_a_network_do_not_mix(kind):
    network = Network(SplitModel(kind(), nn.Linear(4, 4)).parts())
    x = samples().x(torch.arange(6))
    one = network.model(network.initial)
    before = one.backbone(x)
    other = network.model(network.initial * 2.0)
    assert not torch.equal(other.backbone(x), before)
    assert torch.equal(one.backbone(x), before)


@unusual
def test_a_run_gives_the_same_bits_in_threads(kind):
    made = {"model": lambda: SplitModel(kind(), nn.Linear(4, 4)), "cohorts": [[0, 1, 2]], "train__rounds": 1}
    serial, threads = (toys.run(FedPer(), run__engine=engine, run__workers=2, **made) for engine in ("serial", "auto"))
    assert threads.server == serial.server
    assert threads.private == serial.private
    assert toys.plain(threads.rows) == toys.plain(serial.rows)


def test_a_tied_weight_is_one_tensor():
    network = Network(SplitModel(Tied(), nn.Linear(4, 4)).parts())
    assert {"backbone.a.weight", "backbone.a.bias", "backbone.b.bias"} < set(network.initial)
    assert "backbone.b.weight" not in network.initial
    modules = network.bind(network.initial, list(network.initial)).modules
    assert modules.get_parameter("backbone.b.weight") is modules.get_parameter("backbone.a.weight")


def test_a_layer_under_two_names_stays_one_layer():
    network = Network(SplitModel(Shared(), nn.Linear(4, 4)).parts())
    modules = network.bind(network.initial).modules
    assert modules.get_submodule("backbone.b") is modules.get_submodule("backbone.a")


def test_what_is_in_no_state_dict_does_not_pass_from_client_to_client():
    network = Network(SplitModel(Unsaved(), nn.Linear(4, 4)).parts())
    ctx = toys.context(network, epochs=2, classes=4)
    alone = ctx.fit(network.initial, loss, samples())
    between = ctx.fit(network.initial, loss, samples(2))
    assert between != alone
    assert ctx.fit(network.initial, loss, samples()) == alone


def test_layers_that_their_author_froze_are_not_trained():
    network = Network(SplitModel(Frozen(), nn.Linear(4, 4)).parts())
    fixed = {"backbone.fixed.weight", "backbone.fixed.bias"}
    assert {name for name, tags in network.tags.items() if "frozen" in tags} == fixed
    ctx, found = toys.context(network, epochs=2, classes=4), []

    def step(tree, b, grad):
        found.append(set(grad(loss, tree, b)[0]))
        return tree

    tree = ctx.fit(network.initial, loss, samples())
    assert {name for name in tree if torch.equal(tree[name], network.initial[name])} == fixed
    ctx.scan(network.initial, step, samples())
    assert found == [set(tree) - fixed] * 2
    modules = network.bind(network.initial, set(tree) - fixed).modules
    assert modules.get_submodule("backbone.a").training
    assert not modules.get_submodule("backbone.fixed").training


@pytest.mark.parametrize("way", ["fit", "scan"])
def test_a_part_without_weights_drops_while_it_is_trained(way):
    network = Network({"backbone": nn.Sequential(nn.Flatten(), Dropout(0.5)), "head": nn.Linear(64, 4)})
    ctx, seen = toys.context(network, classes=4), []

    def watched(m, b):
        seen.append((m.backbone(b.x), b.x.flatten(1)))
        return loss(m, b)

    def train(part):
        if way == "fit":
            ctx.fit(network.initial, watched, samples(), trains=part)
        else:
            ctx.scan(network.initial, lambda tree, b, grad: (grad(watched, tree, b, part), tree)[1], samples())
        return seen.pop()

    for part in (Part.ALL, Part.BACKBONE | Part.HEAD):
        z, x = train(part)
        assert 100 < (z == 0).sum() < 284  # of 384
        assert torch.equal(z[z != 0], 2 * x[z != 0])
    z, x = train(Part.HEAD)
    assert torch.equal(z, x)


class Indirect(nn.Module):
    """Reaches its layer by something that it stored."""

    def __init__(self, how):
        super().__init__()
        self.a = nn.Linear(64, 8)
        self.go = how(self)

    def forward(self, x):
        return self.go(x.flatten(1))


@pytest.mark.parametrize("how", [lambda net: lambda x: net.a(x), lambda net: net.a.forward], ids=["lambda", "method"])
def test_a_network_whose_copies_would_not_be_trained_is_refused(how):
    def make():
        return SplitModel(Indirect(how), nn.Linear(8, 4))

    with pytest.raises(InputError, match=r"the network uses backbone.a.bias by a reference of its own"):
        toys.experiment(model=make).run()
