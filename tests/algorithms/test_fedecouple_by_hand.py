"""FedeCouple by hand."""

import math
from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
import toys
from hand import CLIENTS, LR, PHI, THETA, head, run, server, softmax, trained

from manyheads.algorithms.fedecouple import FedeCouple
from manyheads.contract import Batch, Tree, Upload

# z = theta x, logits (phi_0 z, phi_1 z)


def glf(theta, phi, images, labels, epochs, anchors, mu):
    """Epochs of the backbone on CE against a frozen head + mu (z - anchor of the label)^2, full batch."""
    for _ in range(epochs):
        g = 0.0
        for x, y in zip(images, labels, strict=True):
            p = softmax([f * theta * x for f in phi])
            g += sum((p[c] - (y == c)) * phi[c] * x for c in (0, 1)) / len(images)
            g += mu * 2 * (theta * x - anchors[y]) * x / len(images)
        theta -= LR * g
    return theta


def means(theta, images, labels):
    """A client's anchors; it has at most one image a class here, so that they are features."""
    return {y: theta * x for x, y in zip(images, labels, strict=True)}


def shares(local, mean):
    """n exp(-d / n), normalised; d sums over the two tensors."""
    n = {0: 2, 1: 1}
    d = {k: abs(theta - mean[0]) + math.dist(phi, mean[1]) for k, (theta, phi) in local.items()}
    raw = {k: n[k] * math.exp(-d[k] / n[k]) for k in d}
    return {k: value / sum(raw.values()) for k, value in raw.items()}


def mixed(local, weight):
    theta = sum(weight[k] * local[k][0] for k in local)
    return theta, [sum(weight[k] * local[k][1][c] for k in local) for c in (0, 1)]


def test_two_rounds_by_hand():
    mu, low, high, t = 0.3, 0.2, 0.4, 2.0  # with two rounds the ramp is clipped to 0.2, then to 0.4
    result = run(
        FedeCouple(center_weight=mu, dynamic="ramp", kd_low=low, kd_high=high, temperature=t, augment=False), rounds=2
    )
    (theta, phi), heads = (THETA, list(PHI)), {0: list(PHI), 1: list(PHI)}
    for round, kd in enumerate((low, high)):
        local = {}
        for k, (images, labels) in CLIENTS.items():
            anchors = means(theta, images, labels)
            _, heads[k] = trained(theta, heads[k], images, labels, 1, body=False, teacher=phi, share=kd, t=t)
            mine = glf(theta, phi, images, labels, 1, anchors, mu * (round > 0))
            local[k] = glf(mine, heads[k], images, labels, 1, anchors, mu * (round > 0)), heads[k]
        weight = shares(local, mixed(local, {0: 2 / 3, 1: 1 / 3}))
        theta, phi = mixed(local, weight)
        noted = result.rows[round + 1]["notes"]["weight"]
        assert noted == {"0": pytest.approx(weight[0], rel=1e-5), "1": pytest.approx(weight[1], rel=1e-5)}
    found_theta, found_phi = server(result)
    assert found_theta == pytest.approx(theta, rel=1e-5)
    assert found_phi == pytest.approx(phi, rel=1e-5)
    for client, expected in heads.items():
        assert head(result.private[client].head) == pytest.approx(expected, rel=1e-5)
    assert heads[0] != pytest.approx(heads[1], rel=1e-2)


def test_glf_first_by_hand():
    result = run(FedeCouple(order="glf_first", kd_low=0.0, kd_high=0.0, aggregation="size", augment=False))
    local = {}
    for k, (images, labels) in CLIENTS.items():
        theta = glf(THETA, PHI, images, labels, 1, {0: 0, 1: 0}, 0.0)
        _, phi = trained(theta, PHI, images, labels, 1, body=False)
        local[k] = glf(theta, phi, images, labels, 1, {0: 0, 1: 0}, 0.0), phi
    theta, phi = mixed(local, {0: 2 / 3, 1: 1 / 3})
    found_theta, found_phi = server(result)
    assert found_theta == pytest.approx(theta, rel=1e-5)
    assert found_phi == pytest.approx(phi, rel=1e-5)


def samples(*values, y=0, **given):
    """A batch of one-pixel images with constants; ``z = x`` below."""
    x = torch.tensor(values).reshape(-1, 1)
    return Batch(x, torch.full((len(values),), y), torch.arange(len(values)), given)


class Heads:
    """A model whose features are the images and whose head multiplies by two numbers."""

    def __init__(self, *phi):
        self.phi = torch.tensor(phi)

    def backbone(self, x):
        return x

    def head(self, z):
        return z * self.phi

    def at(self, tree):
        return Heads(*tree)


@pytest.mark.parametrize(("center", "expected"), [("mse", (1 + 4 + 0 + 1) / 2 / 2), ("sum_half", (5 + 1) / 2 / 2)])
def test_center_loss_by_hand(center, expected):
    # features (1, 2) and (0, 1), both of class 0, whose anchor is the origin: squared distances 5 and 1 in 2 dimensions
    b = Batch(
        torch.tensor([[1.0, 2.0], [0.0, 1.0]]),
        torch.zeros(2, dtype=torch.int64),
        torch.arange(2),
        {"anchors": torch.zeros(3, 2), "center_weight": 2.0},
    )
    found = FedeCouple(center=center).glf_loss(Heads(1.0, 1.0), b)["center"].item()
    assert found == pytest.approx(2 * expected)


def test_distillation_by_confidence_by_hand():
    # At z = log 3, the teacher (1, 0) is (3/4, 1/4) at T = 1, and the student (0, 0) is (1/2, 1/2) at any T.
    z, t = math.log(3), 2.0
    b = samples(z, y=1, global_head=(1.0, 0.0), kd_weight=0.4)
    terms = FedeCouple(dynamic="confidence", kd_high=0.4, temperature=t).gpc_loss(Heads(0.0, 0.0), b)
    soft = softmax([z / t, 0.0])
    kl = sum(p * math.log(p / 0.5) for p in soft)
    assert terms["ce"].item() == pytest.approx((1 - 0.4 / 4) * math.log(2), rel=1e-5)
    assert terms["kd"].item() == pytest.approx(0.4 / 4 * t**2 * kl, rel=1e-5)


@pytest.mark.parametrize(
    ("dynamic", "expected"),
    [
        ("ramp", [0.1, 0.1, 0.2, 0.3, 0.4, 0.5, 0.5]),
        ("decay", [0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.4]),
        ("const", [0.5] * 7),
        ("confidence", [0.5] * 7),
    ],
)
def test_the_weight_of_distillation_over_rounds(dynamic, expected):
    ctx = toys.setting(FedeCouple(), train__rounds=10).client(0, 0)
    found = [FedeCouple(dynamic=dynamic, kd_high=0.5).kd_weight(replace(ctx, round=round)) for round in range(7)]
    assert found == pytest.approx(expected)


@pytest.mark.parametrize(
    ("epochs", "given", "phases"),
    [
        (5, {}, [("gpc", 1), ("glf_global", 2), ("glf_local", 3)]),
        (2, {"head_epochs": 3}, [("gpc", 3), ("glf_global", 1), ("glf_local", 1)]),
        (1, {}, [("gpc", 1), ("glf_global", 1), ("glf_local", 1)]),
        (4, {"global_epochs": 0}, [("gpc", 1), ("glf_global", 0), ("glf_local", 4)]),
        (4, {"order": "glf_first", "local_epochs": 1}, [("glf_global", 2), ("gpc", 1), ("glf_local", 1)]),
    ],
)
def test_epochs_of_the_phases(epochs, given, phases):
    assert FedeCouple(**given).phases(epochs) == phases


# aggregation


def weights(method, models: Mapping[int, tuple[float, float]], sizes: Mapping[int, float]):
    """Weights of models of two numbers, each a tensor."""
    ctx = toys.setting(method).server(0)
    ctx = replace(ctx, tags={"a": frozenset({"backbone"}), "b": frozenset({"head"}), "n": frozenset({"buffer"})})
    uploads = {
        client: Upload(
            model=Tree({"a": torch.tensor([a]), "b": torch.tensor([b]), "n": torch.tensor(client)}),
            weight=sizes[client],
        )
        for client, (a, b) in models.items()
    }
    found = method.weights(uploads, ctx)
    return {client: weight / sum(found.values()) for client, weight in found.items()}


def test_weights_by_distance_by_hand():
    # mean (1.5, 1): distances |0 - 1.5| + |4 - 1| = 4.5 and 0.5 + 1 = 1.5; n = 1 and 3
    found = weights(FedeCouple(), {4: (0.0, 4.0), 7: (2.0, 0.0)}, {4: 1.0, 7: 3.0})
    raw = {4: math.exp(-4.5), 7: 3 * math.exp(-0.5)}
    assert found == {k: pytest.approx(value / sum(raw.values()), rel=1e-6) for k, value in raw.items()}


def test_weights_by_cosine_by_hand():
    # mean ((3 * 3 - 1) / 4, (3 * 1 + 1) / 4) = (2, 1): cosines 7 / sqrt(50) and -1 / sqrt(10), which counts as 0
    found = weights(FedeCouple(aggregation="cosine"), {0: (3.0, 1.0), 1: (-1.0, 1.0)}, {0: 3.0, 1: 1.0})
    assert found == {0: 1.0, 1: 0.0}
    # mean (1, 1): (2, 0) and (0, 2) are equally near, whatever their sizes say
    assert weights(FedeCouple(aggregation="cosine"), {0: (2.0, 0.0), 1: (0.0, 2.0)}, {0: 1.0, 1: 1.0}) == {
        0: pytest.approx(0.5),
        1: pytest.approx(0.5),
    }


def test_weights_by_size():
    assert weights(FedeCouple(aggregation="size"), {0: (3.0, 1.0), 1: (9.0, 9.0)}, {0: 3.0, 1: 1.0}) == {
        0: 0.75,
        1: 0.25,
    }


def test_models_too_far_for_floating_point_still_have_weights():
    found = weights(FedeCouple(), {0: (1e6, 0.0), 1: (-1e6, 0.0), 2: (3e6, 1.0)}, {0: 1.0, 1: 1.0, 2: 1.0})
    assert sum(found.values()) == pytest.approx(1)
    assert found[0] == pytest.approx(1)


@pytest.mark.parametrize("aggregation", ["distance", "cosine", "size"])
def test_noted_weights_are_shares(aggregation):
    result = toys.run(FedeCouple(aggregation=aggregation))
    for row, cohort in zip(result.rows[1:], toys.COHORTS, strict=True):
        noted = row["notes"]["weight"]
        assert list(noted) == [str(client) for client in cohort]
        assert min(noted.values()) >= 0
        assert sum(noted.values()) == pytest.approx(1)
