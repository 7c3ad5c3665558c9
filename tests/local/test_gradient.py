import math

import pytest
import torch
import toys
from torch import nn
from torch.nn.functional import cross_entropy

from manyheads.algorithms.fedavg import FedAvg
from manyheads.algorithms.fedbabu import FedBABU
from manyheads.algorithms.fedcp import FedCP
from manyheads.algorithms.fedecouple import FedeCouple
from manyheads.algorithms.fedper import FedPer
from manyheads.algorithms.local_only import LocalOnly
from manyheads.algorithms.pfedkdh import PFedKDH
from manyheads.analysis.guidance import Guided
from manyheads.contract import Part, PrivateState, Proximal, Tree
from manyheads.local import training
from manyheads.local.losses import ce
from manyheads.local.network import Network

N = 2 * training.GRADIENT_CHUNK + 45  # three pieces, the last one smaller


def many(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return toys.data(torch.randn(N, 1, 8, 8, generator=generator), torch.arange(N).remainder(4).tolist())


@pytest.fixture
def network():
    backbone = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(108, 6))
    backbone[1].running_mean.fill_(0.3)
    backbone[1].running_var.fill_(2.0)
    backbone[0].bias.requires_grad_(False)
    return Network({"backbone": nn.Sequential(*backbone, nn.Dropout(0.5)), "head": nn.Linear(6, 4)})


def loss(m, b):
    return {
        "ce": ce(m.head(m.backbone(b.x)), b),
        "soft": b.mean(((m.backbone(b.x) - b.soft) ** 2).sum(dim=1)),
        "frozen": b.mean(((m.backbone(b.x) - b.frozen) ** 2).sum(dim=1)),
        "prox": Proximal(1.4, m.params.part("backbone"), b.reference),
    }


def described(network):
    """Data with all that may travel with it: columns of both kinds, a reference, and a map that would spoil x."""

    def spoil(b, generator):
        raise AssertionError("maps are left out")

    soft = torch.randn(N, 6, generator=torch.Generator().manual_seed(1))
    data = many().with_(soft=soft, frozen=lambda x: x.flatten(1)[:, :6] * 3)
    return data.given(reference=(network.initial * 0.5).part("backbone")).map(spoil), soft


def test_the_gradient_is_that_of_the_whole_set(network):
    data, soft = described(network)
    found = toys.context(network, classes=4).gradient(network.initial, loss, data)

    bound = network.bind(network.initial.clone(), list(network.initial))
    bound.modules.eval()
    x, y = data.x(torch.arange(N)), data.y
    z = bound.modules["backbone"](x)
    total = cross_entropy(bound.modules["head"](z), y)
    total = total + (z - soft).square().sum(dim=1).mean() + (z - x.flatten(1)[:, :6] * 3).square().sum(dim=1).mean()
    for name, parameter in bound.modules["backbone"].named_parameters():
        total = total + 0.7 * (parameter - 0.5 * network.initial[f"backbone.{name}"]).square().sum()
    expected = dict(
        zip(
            dict(bound.modules.named_parameters()),
            torch.autograd.grad(total, list(bound.modules.parameters())),
            strict=True,
        )
    )
    assert expected.pop("backbone.0.bias").abs().sum() > 0  # its author does not want it trained
    assert sorted(found) == sorted(expected)
    torch.testing.assert_close(dict(found), expected, rtol=1e-4, atol=1e-6)


def test_pieces_do_not_matter_and_nothing_is_random(network, monkeypatch):
    data, _ = described(network)
    before = network.initial.clone()
    ctx = toys.context(network, classes=4)
    found = ctx.gradient(network.initial, loss, data)
    assert ctx.gradient(network.initial, loss, data) == found
    assert toys.context(network, classes=4, seed=7, round=3).gradient(network.initial, loss, data) == found
    assert network.initial == before  # BatchNorm's statistics among them
    assert ctx.trace == []
    monkeypatch.setattr(training, "GRADIENT_CHUNK", N)
    whole = ctx.gradient(network.initial, loss, data)
    assert whole != found
    torch.testing.assert_close(dict(whole), dict(found), rtol=1e-4, atol=1e-6)


def test_trained_parts_only(network):
    ctx, data = toys.context(network, classes=4), many()
    whole = ctx.gradient(network.initial, FedAvg().loss, data)
    for part, names in ((Part.HEAD, {"head.weight", "head.bias"}), (Part.NONE, set())):
        some = ctx.gradient(network.initial, FedAvg().loss, data, part)
        assert set(some) == names
        torch.testing.assert_close(dict(some), {name: whole[name] for name in names})


def test_what_the_loss_does_not_depend_on_has_a_gradient_of_zero(network):
    found = toys.context(network).gradient(
        network.initial, lambda m, b: {"size": b.mean(m.backbone(b.x).sum(1))}, many()
    )
    assert found["head.weight"].shape == (4, 6)
    assert not found["head.weight"].any()
    assert found["backbone.0.weight"].any()


def asked(ctx, network, loss, how):
    if how == "scan":
        return ctx.scan(network.initial, lambda tree, b, grad: (grad(loss, tree, b), tree)[1], many())
    return getattr(ctx, how)(network.initial, loss, many())


@pytest.mark.parametrize("how", ["fit", "gradient", "scan"])
def test_a_loss_must_name_its_terms(network, how):
    ctx = toys.context(network)
    with pytest.raises(TypeError, match="named terms"):
        asked(ctx, network, lambda m, b: m.backbone(b.x).sum(), how)
    with pytest.raises(ValueError, match="no terms"):
        asked(ctx, network, lambda m, b: {}, how)


def moved(record, by):
    """The same record with all its trees' parameters scaled."""
    return record.replace(**{name: record.get(name) * by for name in record if isinstance(record.get(name), Tree)})


def start(algorithm, round=1):
    """A client's turn whose global model, teacher and private head all differ."""
    stage = toys.setting(algorithm, model__dropout=0.0, train__batch=64, train__epochs=1, train__lr=0.05)
    ctx = stage.client(round, 0)
    received = algorithm.broadcast(algorithm.init_server(stage.server(0)), 0, stage.server(round))
    private = algorithm.init_private(received, ctx)
    return moved(received, 1.2), moved(private, 0.7), stage.parties.train(0), ctx


ONE_STEP = [
    (FedAvg(), Part.ALL),
    (FedPer(), Part.ALL),
    (LocalOnly(), Part.ALL),
    (PFedKDH(kd_weight=0.4, prox_weight=0.5), Part.ALL),
    (Guided(extractor_weight=3.0, classifier_weight=5.0), Part.ALL),
    (FedeCouple(head_epochs=0, global_epochs=0, local_epochs=1, center_weight=2.0, augment=False), Part.BACKBONE),
]


@pytest.mark.parametrize(("algorithm", "part"), ONE_STEP, ids=lambda value: type(value).__name__)
def test_a_round_goes_down_the_gradient_of_its_objective(algorithm, part):
    """One step over all images from where the round starts: it must be the one that the objective's gradient says."""
    received, private, data, ctx = start(algorithm)
    objective = algorithm.objective(received, private, data, ctx)
    gradient = ctx.take(ctx.gradient(*objective), part)
    update = algorithm.local_update(received, private, data, ctx)
    expected = objective.model.descend(gradient, ctx.sgd.lr)
    assert expected != objective.model
    torch.testing.assert_close(dict(update.trained.tree), dict(expected), rtol=1e-4, atol=1e-6)


def test_the_objective_of_fedecouple_by_hand():
    """theta = 0.5 and private phi = (1, -1); the head that is received plays no part."""
    body, head = nn.Linear(1, 1, bias=False), nn.Linear(1, 2, bias=False)
    network = Network({"backbone": nn.Sequential(nn.Flatten(), body), "head": head})
    phi = Tree({"weight": torch.tensor([[1.0], [-1.0]])})
    model = Tree({"backbone.1.weight": torch.tensor([[0.5]]), "head.weight": torch.tensor([[9.0], [9.0]])})
    received = FedAvg().broadcast(PrivateState(model=model), 0, toys.context(network))
    data = toys.data([1.0, 2.0, 4.0], [0, 1, 1])  # features 0.5, 1 and 2: anchors 0.5 and 1.5
    weight = 3.0
    algorithm = FedeCouple(center_weight=weight)
    found = {}
    for round in (0, 1):
        ctx = toys.context(network, round=round, rounds=2)
        found[round] = ctx.gradient(*algorithm.objective(received, PrivateState(model=Tree(), head=phi), data, ctx))
    slope, heads = 0.0, [0.0, 0.0]
    for x, y in ((1.0, 0), (2.0, 1), (4.0, 1)):
        z = 0.5 * x
        p = math.exp(z) / (math.exp(z) + math.exp(-z))
        g = [p - (y == 0), (1 - p) - (y == 1)]
        slope += (g[0] - g[1]) * x / 3
        heads = [h + g_c * z / 3 for h, g_c in zip(heads, g, strict=True)]
    center = weight * sum(2 * (z - anchor) * x for x, z, anchor in ((2.0, 1.0, 1.5), (4.0, 2.0, 1.5))) / 3
    for round, expected in ((0, slope), (1, slope + center)):
        assert found[round]["backbone.1.weight"].item() == pytest.approx(expected, rel=1e-5)
        assert found[round]["head.weight"].flatten().tolist() == pytest.approx(heads, rel=1e-5)


@pytest.mark.parametrize("method", [FedBABU(), FedCP()], ids=lambda method: type(method).__name__)
def test_what_is_not_trained_has_no_part_in_the_norm(method):
    """Both hold the head that they receive fixed."""
    stage = toys.setting(method, train__rounds=1)
    ctx, data = stage.client(0, 0), stage.parties.train(0)
    received = method.broadcast(method.init_server(stage.server(0)), 0, stage.server(0))
    objective = method.objective(received, method.init_private(received, ctx), data, ctx)
    whole = ctx.gradient(objective.model, objective.loss, objective.data)
    expected = sum(float(t.double().square().sum()) for name, t in whole.items() if not name.startswith("head."))
    notes = toys.run(method, train__rounds=1, cohorts=[[0]], run__gradients=True).rows[-1]["notes"]
    assert notes["squared_gradient"]["0"] == pytest.approx(expected, rel=1e-6)
    assert any(t.abs().max() > 0 for t in whole.part("head").values())
