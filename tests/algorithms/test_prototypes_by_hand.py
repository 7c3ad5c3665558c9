"""Prototypes, statistics of features and heads mixed or trained out of them, by hand; see ``hand``."""

import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import toys
from hand import CLIENTS, LR, PHI, THETA, head, linear, run, server, softmax, trained
from hypothesis import given, settings
from hypothesis import strategies as st

from manyheads.algorithms import fedpac
from manyheads.algorithms.fedgh import FedGH
from manyheads.algorithms.fedpac import FedPAC, collaboration, simplex_minimum, statistics
from manyheads.algorithms.fedproto import FedProto, by_distance
from manyheads.contract import Batch, Broadcast, PrivateState, Upload
from manyheads.local.network import Network
from manyheads.local.prototypes import pooled


def fitted(theta, phi, images, labels, epochs, body=True, top=True, lr=LR, prototypes=None, weight=0.0):
    """SGD on CE + weight (z - prototype of the label)^2, full batch, of the backbone, of the head or of both."""
    for _ in range(epochs):
        g_theta, g_phi = 0.0, [0.0, 0.0]
        for x, y in zip(images, labels, strict=True):
            z = theta * x
            p = softmax([f * z for f in phi])
            for c in (0, 1):
                g_phi[c] += (p[c] - (y == c)) * z / len(images)
                g_theta += (p[c] - (y == c)) * phi[c] * x / len(images)
            g_theta += weight * 2 * (z - prototypes[y]) * x / len(images) if weight else 0.0
        theta = theta - lr * g_theta if body else theta
        phi = [f - lr * g for f, g in zip(phi, g_phi, strict=True)] if top else phi
    return theta, phi


def prototypes_of(thetas):
    """Of both classes: client 0 has one image of each, client 1 one of class 1."""
    return [thetas[0] * 1.0, (thetas[0] * 2.0 + thetas[1] * 3.0) / 2]


def test_prototypes_are_pooled_by_their_numbers_of_images():
    # Class 0: 3 images of mean (1, 0) and one of mean (5, 4). Class 1: nobody now, but before. Class 2: nobody ever.
    uploads = {
        4: Upload(means=torch.tensor([[1.0, 0.0], [0.0, 0.0], [0.0, 0.0]]), counts=torch.tensor([3, 0, 0])),
        7: Upload(means=torch.tensor([[5.0, 4.0], [0.0, 0.0], [0.0, 0.0]]), counts=torch.tensor([1, 0, 0])),
    }
    before = torch.tensor([[9.0, 9.0], [7.0, 8.0], [0.0, 0.0]])
    prototypes, known = pooled(uploads, before, torch.tensor([0.0, 1.0, 0.0]))
    assert prototypes.tolist() == [[2.0, 1.0], [7.0, 8.0], [0.0, 0.0]]
    assert known.tolist() == [1.0, 1.0, 0.0]


def test_fedproto_two_rounds():
    weight = 0.3
    result = run(FedProto(proto_weight=weight), rounds=2)
    thetas, phis = {0: THETA, 1: THETA}, {0: list(PHI), 1: list(PHI)}
    prototypes = None
    for round in range(2):
        for k, (images, labels) in CLIENTS.items():
            strength = weight if round else 0.0
            thetas[k], phis[k] = fitted(thetas[k], phis[k], images, labels, 2, prototypes=prototypes, weight=strength)
        prototypes = prototypes_of(thetas)
    assert result.server.prototypes.flatten().tolist() == pytest.approx(prototypes, rel=1e-5)
    assert result.server.known.tolist() == [1.0, 1.0]
    for k, kept in result.private.items():
        assert kept.model["backbone.1.weight"].item() == pytest.approx(thetas[k], rel=1e-5)
        assert head(kept.model.part("head")) == pytest.approx(phis[k], rel=1e-5)
    assert set(result.server.model) == set()


def test_fedproto_has_no_term_for_a_class_without_prototype():
    m = SimpleNamespace(backbone=lambda x: x, head=lambda z: z)
    prototypes, known = torch.tensor([[1.0, 1.0], [0.0, 0.0]]), torch.tensor([1.0, 0.0])
    x, y = torch.tensor([[3.0, 0.0], [5.0, 5.0]]), torch.tensor([0, 1])
    b = Batch(x, y, torch.arange(2), {"prototypes": prototypes, "known": known})
    assert FedProto(proto_weight=2.0).loss(m, b)["proto"].item() == 2.0 * ((4 + 1) / 2 + 0) / 2


def test_the_nearest_prototype_is_among_known_ones():
    # (1, 1) is nearest to the origin, where the prototype of class 1 would be, had it one; then to class 2.
    m = SimpleNamespace(backbone=lambda x: x)
    prototypes = torch.tensor([[4.0, 5.0], [0.0, 0.0], [1.0, 4.0]])
    x = torch.tensor([[1.0, 1.0], [9.0, 9.0]])
    answers = by_distance(m, x, prototypes=prototypes, known=torch.tensor([1.0, 0.0, 1.0]))
    assert answers[0].tolist() == pytest.approx([-5.0, -math.inf, -3.0])
    assert answers.argmax(dim=1).tolist() == [2, 0]
    assert by_distance(m, x, prototypes=prototypes, known=torch.ones(3)).argmax(dim=1).tolist() == [1, 0]


def test_fedgh_trains_its_head_on_class_means():
    lr = 0.5
    result = run(FedGH(server_lr=lr, server_epochs=2), rounds=2)
    thetas, phi = {0: THETA, 1: THETA}, list(PHI)
    for _ in range(2):
        for k, (images, labels) in CLIENTS.items():
            thetas[k], _ = trained(thetas[k], phi, images, labels, epochs=2)
        pairs = [thetas[0] * 1.0, thetas[0] * 2.0, thetas[1] * 3.0]
        _, phi = fitted(1.0, phi, pairs, [0, 1, 1], 2, body=False, lr=lr)
    assert server(result) == (THETA, pytest.approx(phi, rel=1e-5))
    for k, kept in result.private.items():
        assert kept.model["backbone.1.weight"].item() == pytest.approx(thetas[k], rel=1e-5)


# FedPAC


def test_statistics():
    # Two images of class 0 with mean (2, 0), one of class 2; the mean of ||z||^2 is 14/3.
    features = torch.tensor([[1.0, 0.0], [3.0, 0.0], [0.0, 2.0]])
    h, variance = statistics(features, torch.tensor([0, 0, 2]), 3)
    torch.testing.assert_close(h, torch.tensor([[4 / 3, 0.0], [0.0, 0.0], [0.0, 2 / 3]]))
    assert variance == pytest.approx((14 / 3 - 16 / 9 - 4 / 9) / 3)
    assert statistics(features[:1], torch.tensor([1]), 3)[1] == 0.0  # one image: no variance is known


def simplex(n, parts=100):
    """A grid over all weights of n clients."""
    inner = itertools.product(range(parts + 1), repeat=n - 1)
    return np.array([(*a, parts - sum(a)) for a in inner if sum(a) <= parts]) / parts


def least_on_grid(q):
    a = simplex(len(q))
    return np.einsum("gi,ij,gj->g", a, q, a).min()


numbers = st.floats(-3, 3, allow_nan=False, width=32)


@given(st.integers(2, 3), st.lists(numbers, min_size=9, max_size=9), st.integers(0, 3), st.sampled_from([1e-9, 1, 1e6]))
@settings(max_examples=60)
def test_the_programme_is_as_good_as_a_grid(n, entries, rank, scale):
    r = np.array(entries).reshape(3, 3)[:rank, :n]  # of full rank or singular, or nothing at all
    q = r.T @ r
    a = simplex_minimum(torch.from_numpy(scale * q)).numpy()
    assert a.min() >= 0
    assert a.sum() == pytest.approx(1, abs=1e-9)
    assert a @ q @ a <= least_on_grid(q) + 1e-9 * (1 + np.abs(q).max())


def test_the_programme_of_two_has_a_formula():
    q = torch.tensor([[2.0, 0.5], [0.5, 1.0]], dtype=torch.float64)
    assert simplex_minimum(q).tolist() == pytest.approx([0.5 / 2, 1.5 / 2])  # (q22 - q12) / (q11 + q22 - 2 q12)
    assert simplex_minimum(torch.tensor([[2.0, 1.5], [1.5, 1.0]], dtype=torch.float64)).tolist() == [0.0, 1.0]
    assert simplex_minimum(torch.tensor([[3.0]], dtype=torch.float64)).tolist() == [1.0]


def test_what_makes_the_programme_no_convex_one_is_cut_off():
    # Of the eigenvalues (3 + sqrt 17) / 2 and (3 - sqrt 17) / 2 the second is below 0. Without it what is left is a
    # multiple of (2 a_1 + 2.56 a_2)^2, least at the first corner; with its absolute value it would be (0.8, 0.2).
    q = torch.tensor([[1.0, 2.0], [2.0, 2.0]], dtype=torch.float64)
    assert simplex_minimum(q).tolist() == pytest.approx([1.0, 0.0])


def stats(*features, variance):
    """What a client sends, with one class and features of its own size."""
    return Upload(class_features=torch.tensor([features]), variance=variance)


def wanted(uploads, client):
    """The programme of one client, as it is written in the paper."""
    own = uploads[client].class_features.double().numpy()
    apart = [own - upload.class_features.double().numpy() for upload in uploads.values()]
    q = np.diag([float(upload.variance) for upload in uploads.values()])
    return q + np.array([[(a * b).sum() for b in apart] for a in apart])


def test_collaboration_solves_every_client_s_own_programme():
    uploads = {
        2: stats(1.0, 0.0, variance=0.7),
        5: stats(0.5, 0.5, variance=0.4),
        6: stats(-1.0, 2.0, variance=0.2),
    }
    found = collaboration(uploads)
    assert list(found) == [2, 5, 6]
    for client, mix in found.items():
        q, a = wanted(uploads, client), np.array([mix.get(other, 0.0) for other in uploads])
        assert a.sum() == pytest.approx(1)
        assert a @ q @ a <= least_on_grid(q) + 1e-6
    backwards = collaboration(dict(reversed(uploads.items())))
    for client, mix in found.items():  # whose weight is whose does not depend on the order of uploads
        assert backwards[client] == pytest.approx(mix)


def test_collaboration_of_one_and_of_one_without_variance():
    assert collaboration({3: stats(1.0, 2.0, variance=0.5)}) == {3: {3: 1.0}}
    # Client 1 knows its features exactly: its own head is the best it can have. To client 0, which does not, a head
    # at distance 4 with variance 0 is worth a quarter: (v_0, 4) are the costs.
    found = collaboration({0: stats(0.0, 0.0, variance=12.0), 1: stats(0.0, 2.0, variance=0.0)})
    assert found[0] == {0: pytest.approx(4 / 16), 1: pytest.approx(12 / 16)}
    assert found[1] == {1: 1.0}


def test_small_weights_are_dropped(monkeypatch):
    # To client 0 the other head costs 10,000 and its own 1: the weights are 1/10,001 and the rest.
    found = collaboration({0: stats(0.0, variance=1.0), 1: stats(100.0, variance=0.0)})
    assert found[0] == {0: 1.0}
    # Where all are small, as among very many clients, the largest stays.
    monkeypatch.setattr(fedpac, "LEAST_WEIGHT", 0.9)
    found = collaboration({0: stats(0.0, 0.0, variance=12.0), 1: stats(0.0, 2.0, variance=0.0)})
    assert found[0] == {1: 1.0}


def test_fedpac_two_rounds():
    weight, head_lr = 0.3, 0.05
    result = run(FedPAC(proto_weight=weight, head_lr=head_lr), rounds=2)
    theta, heads, prototypes = THETA, {0: list(PHI), 1: list(PHI)}, None
    for round in range(2):
        # Class 0 and class 1 of client 0 have features theta and 2 theta, and each half of its images.
        h = {0: [theta / 2, theta], 1: [0.0, 3 * theta]}
        variance = (theta**2 * (1 + 4) / 2 - h[0][0] ** 2 - h[0][1] ** 2) / 2  # client 1's is 0
        far = sum((a - b) ** 2 for a, b in zip(h[0], h[1], strict=True))
        local = {}
        for k, (images, labels) in CLIENTS.items():
            _, phi = fitted(theta, heads[k], images, labels, 1, body=False, lr=head_lr)
            strength = weight if round else 0.0
            local[k] = fitted(theta, phi, images, labels, 2, top=False, prototypes=prototypes, weight=strength)
        share = far / (variance + far)
        mine, other = local[0][1], local[1][1]
        heads = {0: [share * a + (1 - share) * b for a, b in zip(mine, other, strict=True)], 1: other}
        theta = (2 * local[0][0] + local[1][0]) / 3
        prototypes = prototypes_of({k: t for k, (t, _) in local.items()})
    assert server(result) == (pytest.approx(theta, rel=1e-5), list(PHI))
    assert result.server.prototypes.flatten().tolist() == pytest.approx(prototypes, rel=1e-5)
    assert {k: head(tree) for k, tree in result.server.heads.items()} == {
        k: pytest.approx(phi, rel=1e-5) for k, phi in heads.items()
    }
    assert 0.05 < share < 0.95


def test_fedpac_falls_back_to_own_prototypes_under_the_received_backbone():
    network = Network(linear().parts())
    data = toys.data([1.0, 3.0, 5.0], [0, 0, 1])
    for known, weight in ([0.0, 1.0], 2.0), ([0.0, 0.0], 0.0):
        received = Broadcast(prototypes=torch.tensor([[0.0], [7.0]]), known=torch.tensor(known))
        ready = FedPAC(proto_weight=2.0).prepare(network.initial, received, PrivateState(), data, toys.context(network))
        assert ready.constants["prototypes"].flatten().tolist() == [THETA * 2.0, 7.0 if known[1] else THETA * 5.0]
        assert ready.constants["proto_weight"] == weight
