"""What is particular to methods of heads, features and prototypes, against numbers worked out by hand; see ``hand``."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import toys
from hand import CLIENTS, LR, PHI, THETA, head, linear, run, server, softmax

from manyheads.algorithms.fedala import FedALA
from manyheads.algorithms.fedcp import FedCP, context, divided, mmd
from manyheads.algorithms.fedrod import FedRoD
from manyheads.algorithms.moon import Moon
from manyheads.algorithms.pfedsim import PFedSim, mixing_weights, similar
from manyheads.contract import Batch, Broadcast, Part, PrivateState, Tree, Upload
from manyheads.local.network import Network


def samples(x, y=None, **extra):
    """A batch of features, or of images that are their own features."""
    x = torch.tensor(x)
    return Batch(
        x, torch.zeros(len(x), dtype=torch.int64) if y is None else torch.tensor(y), torch.arange(len(x)), extra
    )


# pFedSim


def test_mixing_weights():
    found = mixing_weights({0: 0.0, 2: 0.5, 3: 1.0}, own=1)
    assert found == pytest.approx({0: 0.0, 1: math.log(10000), 2: math.log(2), 3: math.log(10000)})


def test_similarity_and_mixture_of_pfedsim():
    stage = toys.setting(PFedSim())
    ctx, method = stage.server(0), PFedSim(warmup=0.0)
    one, two = torch.eye(8)[0], torch.eye(8)[1]

    def upload(number, *rows):
        backbone = ctx.take(ctx.initial, Part.BACKBONE).map(lambda t: torch.full_like(t, number))
        return Upload(model=ctx.initial | backbone | Tree({"head.weight": torch.stack(rows)}), weight=1.0)

    def received(client):
        found = {value for t in method.broadcast(state, client, ctx).model.values() for value in t.unique().tolist()}
        return found.pop() if len(found) == 1 else found

    state = method.init_server(ctx)
    # Cosines by class: of 0 and 1 (1, 1, 0, 0), where lengths do not count; of 0 and 2 -1; of 1 and 2 (-1, -1, 0, 0).
    uploads = {0: upload(0.0, one, one, one, one), 1: upload(1.0, 10 * one, one, two, two)}
    state = method.aggregate(state, {**uploads, 2: upload(2.0, -one, -one, -one, -one)}, ctx)
    assert [similar(state, client) for client in range(6)] == [
        *(pytest.approx(s) for s in ({1: 0.5, 2: 0.0}, {0: 0.5, 2: 0.0}, {0: 0.0, 1: 0.0})),
        *[{}] * 3,
    ]
    own, other = math.log(10000), math.log(2)
    assert received(0) == pytest.approx(other / (own + other), rel=1e-5)
    assert received(1) == pytest.approx(own / (own + other), rel=1e-5)
    assert received(2) == 2.0
    # Next round: 1 moves, and is like 3. What 0 and 1 have said of each other stays; 0 and 3 never met.
    state = method.aggregate(state, {1: upload(5.0, one, one, one, one), 3: upload(4.0, one, one, one, one)}, ctx)
    assert similar(state, 0) == pytest.approx({1: 0.5, 2: 0.0})
    assert similar(state, 1) == pytest.approx({0: 0.5, 2: 0.0, 3: 1.0})
    # They meet again, as opposites.
    again = {0: upload(0.0, one, one, one, one), 1: upload(1.0, -one, -one, -one, -one)}
    assert similar(method.aggregate(state, again, ctx), 1) == pytest.approx({0: 0.0, 2: 0.0, 3: 1.0})
    assert received(0) == pytest.approx(5 * other / (own + other), rel=1e-5)
    assert received(3) == pytest.approx(4.5, rel=1e-5)
    for late in (4, 5):
        assert method.broadcast(state, late, ctx).model == ctx.initial


# FedRoD


def test_both_terms_of_fedrod():
    # z = 1: generic logits (log 3, 0), personal ones (0, log 2); the label is 1; a quarter of the images is of class 0.
    m = SimpleNamespace(
        backbone=lambda x: x,
        head=lambda z: z * torch.tensor([math.log(3), 0.0]),
        personal_head=lambda z: z * torch.tensor([0.0, math.log(2)]),
    )
    for gamma, odds in (1.0, (3 / 4, 3 / 4)), (2.0, (3 / 16, 9 / 16)):
        method = FedRoD(gamma=gamma)
        data = method.prepare(Tree(), Broadcast(), PrivateState(), toys.data([0.0] * 4, [0, 1, 1, 1]), ctx_of_two())
        terms = method.loss(m, samples([[1.0]], [1], **data.constants))
        assert terms["generic"].item() == pytest.approx(-math.log(odds[1] / sum(odds)), rel=1e-5)
        assert terms["personal"].item() == pytest.approx(-math.log(2 / (3 + 2)), rel=1e-5)


def ctx_of_two():
    return SimpleNamespace(classes=2)


def test_the_personal_term_moves_the_personal_head_only():
    theta, generic, personal = (torch.tensor([1.0, 0.5], requires_grad=True) for _ in range(3))
    m = SimpleNamespace(backbone=lambda x: x * theta, head=lambda z: z * generic, personal_head=lambda z: z * personal)
    terms = FedRoD().loss(m, samples([[1.0, 2.0]], [0], log_share=torch.tensor([0.5, 0.5]).log()))
    of = {
        name: torch.autograd.grad(term, (theta, generic, personal), retain_graph=True, allow_unused=True)
        for name, term in terms.items()
    }
    assert [g is not None for g in of["personal"]] == [False, False, True]
    assert [g is not None for g in of["generic"]] == [True, True, False]


def test_a_class_that_a_client_lacks_is_masked():
    logits = torch.tensor([[5.0, 1.0, 0.0]], requires_grad=True)
    m = SimpleNamespace(backbone=lambda x: x, head=lambda z: logits, personal_head=lambda z: torch.zeros(1, 3))
    ready = FedRoD().prepare(
        Tree(), Broadcast(), PrivateState(), toys.data([0.0, 0.0], [1, 2]), SimpleNamespace(classes=3)
    )
    loss = FedRoD().loss(m, samples([[1.0]], [1], **ready.constants))["generic"]
    assert loss.item() == pytest.approx(-math.log(softmax([1.0, 0.0])[0]), rel=1e-5)
    (gradient,) = torch.autograd.grad(loss, logits)
    assert gradient[0, 0] == 0
    assert gradient[0, 1] != 0


def test_fedrod_one_round():
    result = run(FedRoD())
    a, b = (result.server.model[f"personal_head.{name}"].flatten().tolist() for name in ("weight", "bias"))
    theta, phi = THETA, list(PHI)
    local = {}
    for k, (images, labels) in CLIENTS.items():
        theta, phi, mine, bias = THETA, list(PHI), list(a), list(b)
        classes = sorted(set(labels))  # client 0 has both classes in equal shares, client 1 only one
        for _ in range(2):
            g_theta, g_phi, g_mine, g_bias = 0.0, [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]
            for x, y in zip(images, labels, strict=True):
                z, n = theta * x, len(images)
                among = dict(zip(classes, softmax([phi[c] * z for c in classes]), strict=True))
                both = softmax([phi[c] * z + mine[c] * z + bias[c] for c in (0, 1)])
                for c in (0, 1):
                    g = among[c] - (y == c) if c in among else 0.0
                    g_phi[c] += g * z / n
                    g_theta += g * phi[c] * x / n
                    g_mine[c] += (both[c] - (y == c)) * z / n
                    g_bias[c] += (both[c] - (y == c)) / n
            theta = theta - LR * g_theta
            phi, mine, bias = (
                [v - LR * g for v, g in zip(values, slopes, strict=True)]
                for values, slopes in ((phi, g_phi), (mine, g_mine), (bias, g_bias))
            )
        local[k] = theta, phi
        kept = result.private[k].model
        assert kept["personal_head.weight"].flatten().tolist() == pytest.approx(mine, rel=1e-5)
        assert kept["personal_head.bias"].tolist() == pytest.approx(bias, rel=1e-5)
        assert set(kept) == {"personal_head.weight", "personal_head.bias"}
    assert local[1] == (THETA, list(PHI))  # with one class there is nothing to tell apart
    found_theta, found_phi = server(result)
    assert found_theta == pytest.approx((2 * local[0][0] + THETA) / 3, rel=1e-5)
    assert found_phi == pytest.approx([(2 * f + g) / 3 for f, g in zip(local[0][1], PHI, strict=True)], rel=1e-5)


def test_fedrod_answers_with_the_sum():
    m = SimpleNamespace(backbone=lambda x: x, head=lambda z: 2 * z, personal_head=lambda z: 3 * z)
    x = torch.tensor([[1.0, 4.0]])
    assert FedRoD().logits(m, x).tolist() == [[5.0, 20.0]]
    assert FedRoD().generic(m, x).tolist() == [[2.0, 8.0]]


# MOON


def test_the_contrast_of_moon():
    # z = (3, 4); the global model's is along it, and the last one's has the cosine 0.6: at T = 0.5 logits 2 and 1.2.
    m = SimpleNamespace(backbone=lambda x: x, projection=lambda z: z, head=lambda z: z)
    references = {"of_global": torch.tensor([[6.0, 8.0]]), "of_previous": torch.tensor([[2.0, 0.0]])}
    loss = Moon(contrast_weight=3.0, temperature=0.5).loss
    term = loss(m, samples([[3.0, 4.0]], **references))["contrast"]
    assert term.item() == pytest.approx(-3 * math.log(softmax([2.0, 1.2])[0]), rel=1e-5)
    # features of a thousand: exp of anything larger than cosines would not be finite
    far = loss(m, samples([[3000.0, 4000.0]], **references))["contrast"]
    assert far.item() == pytest.approx(term.item(), rel=1e-5)


def test_the_contrast_is_log_2_without_a_last_model():
    rows = run(Moon(contrast_weight=2.0, projection=3), rounds=2, train__lr=1.0).rows
    assert rows[1]["loss"]["contrast"] == pytest.approx(2 * math.log(2), rel=1e-6)
    assert rows[2]["loss"]["contrast"] != pytest.approx(2 * math.log(2), rel=1e-3)


def test_the_network_of_moon():
    base = {"backbone": torch.nn.Flatten(), "head": torch.nn.Linear(5, 2)}
    parts = Moon(projection=3).parts(base, SimpleNamespace(features=5, classes=2))
    assert parts["backbone"] is base["backbone"]
    first, between, second = parts["projection"]
    assert (first.in_features, first.out_features, second.in_features, second.out_features) == (5, 5, 5, 3)
    assert isinstance(between, torch.nn.ReLU)
    assert (parts["head"].in_features, parts["head"].out_features) == (3, 2)


# FedALA


def learned(last, images, labels, lr, epochs, start=(1.0, 1.0)):
    """W for the head PHI, received, and ``last``, after full-batch epochs; every W that it ever had."""
    w = list(start)
    seen = [w]
    for _ in range(epochs):
        phi = [o + (n - o) * v for o, n, v in zip(last, PHI, w, strict=True)]
        slope = [0.0, 0.0]
        for x, y in zip(images, labels, strict=True):
            p = softmax([f * THETA * x for f in phi])
            for c in (0, 1):
                slope[c] += (p[c] - (y == c)) * THETA * x * (PHI[c] - last[c]) / len(images)
        w = [min(1.0, max(0.0, v - lr * s)) for v, s in zip(w, slope, strict=True)]
        seen.append(w)
    return w, seen


def ala(method, last, images, labels, weights=None):
    """A client of FedALA with a last head, and how it mixes; the context, in whose trace epochs of W are counted."""
    network = Network(linear().parts())
    ctx = toys.context(network, epochs=2)
    tree = Tree({"head.weight": torch.tensor(last)[:, None]})
    kept = {} if weights is None else {"weights": Tree({"head.weight": torch.tensor(weights)[:, None]})}
    private = PrivateState(model=Tree(), last=tree, **kept)
    received = Broadcast(model=network.initial)
    return method, received, private, toys.data(images, labels), ctx


@pytest.mark.parametrize(
    ("last", "lr", "clipped"),
    [((0.2, 0.5), 0.5, None), ((0.2, 0.5), 2.0, 0.0), ((2.0, 0.5), 0.5, 1.0)],
    ids=["inside", "at 0", "at 1"],
)
def test_weights_of_fedala(last, lr, clipped):
    images, labels = CLIENTS[0]
    method, received, private, data, ctx = ala(FedALA(weight_lr=lr, share=1.0, most_epochs=3), last, images, labels)
    model, kept = method.mixed(received, private, data, ctx, first=3)
    w, seen = learned(last, images, labels, lr, 3)
    assert head(kept["weights"]) == pytest.approx(w, rel=1e-5, abs=1e-7)
    mixture = [o + (n - o) * v for o, n, v in zip(last, PHI, w, strict=True)]
    assert head(model.part("head")) == pytest.approx(mixture, rel=1e-5)
    assert model["backbone.1.weight"].item() == THETA  # below the head all is as received
    assert seen[1] != seen[2] != seen[3]  # each epoch starts from what the one before it left
    touched = [v for step in seen[1:] for v in step if v in (0.0, 1.0)]
    assert (touched[:1] or [None])[0] == clipped


def test_weights_of_fedala_move_with_every_batch():
    # Equal images, two a batch: whatever their order, an epoch is two equal steps.
    method, received, private, data, ctx = ala(
        FedALA(weight_lr=0.5, share=1.0), (0.2, 0.5), [2.0] * 4, [0] * 4, weights=(0.5, 0.5)
    )
    _, kept = method.mixed(received, private, data, replace(ctx, batch=2), first=50)
    w, _ = learned((0.2, 0.5), [2.0], [0], 0.5, 2, start=(0.5, 0.5))
    assert head(kept["weights"]) == pytest.approx(w, rel=1e-5)


def test_fedala_learns_until_the_loss_is_settled():
    images, labels = CLIENTS[0]

    def epochs(method, last=(0.2, 0.5), images=images, labels=labels, weights=None, test=False):
        method, received, private, data, ctx = ala(method, last, images, labels, weights)
        if test:
            method.personal(received, private, data, ctx)
        else:
            method.local_update(received, private, data, ctx)
        return sum("weights/ce" in terms for terms in ctx.trace)

    assert epochs(FedALA(weight_lr=1e-6)) == 10  # ten values are needed to see that nothing changes
    assert epochs(FedALA(weight_lr=1e-6, most_epochs=4)) == 4
    assert epochs(FedALA(weight_lr=1e-6), weights=(0.5, 0.5)) == 1
    assert epochs(FedALA(weight_lr=1e-6), test=True) == 1
    assert epochs(FedALA(weight_lr=1e-6), weights=(0.5, 0.5), test=True) == 1
    assert epochs(FedALA(learned=False)) == 0
    # Two equal images with different labels: between the heads (1, -1) and (-3, 3) is a better one, W jumps over it.
    jumping = {"last": (-3.0, 3.0), "images": [1.0, 1.0], "labels": [0, 1]}
    assert epochs(FedALA(weight_lr=1000.0, share=1.0), **jumping) == 50


def test_fedala_keeps_its_weights_and_its_trained_head():
    images, labels = CLIENTS[0]
    method, received, private, data, ctx = ala(FedALA(share=1.0), (0.2, 0.5), images, labels, weights=(0.5, 0.25))
    update = method.local_update(received, private, data, ctx)
    assert head(update.private.last) == head(update.upload.model.part("head"))
    assert head(update.private.weights) != [0.5, 0.25]
    assert set(update.private.last) == {"head.weight"}


# FedCP


def test_features_are_divided_between_the_heads_of_fedcp():
    # The policy says (log 3, 0) for the first feature and (0, 0) for the second: shares 3/4 and 1/2 are personal.
    asked = []

    def policy(z):
        asked.append(z)
        return torch.tensor([[[math.log(3), 0.0], [0.0, 0.0]]])

    m = SimpleNamespace(policy=policy, head=lambda z: 10 * z, personal_head=lambda z: z)
    z, about = torch.tensor([[8.0, 2.0]]), torch.tensor([0.6, 0.8])
    assert divided(m, z, about, torch.zeros(())).tolist() == [pytest.approx([6 + 20, 1 + 10])]
    assert asked[0].tolist() == [pytest.approx([4.8, 1.6])]
    noise = torch.tensor([[[0.0, 0.0], [math.log(3), math.log(3)]]])  # shares become 1/2 and 1/4
    assert divided(m, z, about, noise).tolist() == [pytest.approx([4 + 40, 0.5 + 15])]


def test_the_context_of_fedcp():
    tree = Tree({"personal_head.weight": torch.tensor([[1.0, 5.0], [2.0, -1.0]]), "personal_head.bias": torch.ones(2)})
    assert context(tree).tolist() == pytest.approx([3 / 5, 4 / 5])


def test_the_maximum_mean_discrepancy():
    # a = {0, 2}, b = {1}: the squared distance within a is 4, from either to b 1
    def k(far):
        return sum(math.exp(-far / (2 * width)) for width in (10, 15, 20, 50))

    a, b = torch.tensor([[0.0], [2.0]]), torch.tensor([[1.0], [1.0]])
    expected = (2 * k(0) + 2 * k(4)) / 4 + k(0) - 2 * k(1)
    assert mmd(a, b).item() == pytest.approx(expected, abs=1e-6)
    assert expected > 1e-3
    assert mmd(a, a).item() == pytest.approx(0.0, abs=1e-6)


def test_the_noise_of_fedcp_is_gumbel_s():
    stage = toys.setting(FedCP())
    ctx = stage.client(0, 0)
    received = Broadcast(model=stage.network.initial)
    data = FedCP().prepare(stage.network.initial, received, PrivateState(), stage.parties.train(0), ctx)
    noise = data.draws["noise"](5000, torch.Generator().manual_seed(1))
    assert noise.shape == (5000, 2, 8)
    assert noise.mean().item() == pytest.approx(0.5772, abs=0.02)
    assert noise.var().item() == pytest.approx(math.pi**2 / 6, abs=0.05)


def test_fedcp_sends_the_mean_of_both_heads(overheard):
    result = run(FedCP(mmd_weight=0.1))
    for client in (0, 1):
        sent = Upload.from_bytes(overheard[0, client]).model
        kept = result.private[client].model
        assert set(kept) == {"personal_head.weight"}
        mine = head(kept)
        assert mine != list(PHI)
        assert head(sent.part("head")) == pytest.approx([(a + b) / 2 for a, b in zip(mine, PHI, strict=True)], rel=1e-6)
        assert {name.partition(".")[0] for name in sent} == {"backbone", "head", "policy"}
    policies = [Upload.from_bytes(overheard[0, client]).model.part("policy") for client in (0, 1)]
    assert policies[0] != policies[1]  # they are trained
