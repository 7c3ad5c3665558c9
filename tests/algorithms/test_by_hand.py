"""One round on a network of three numbers, two clients and three images, against formulas written out here.

The backbone is z = theta x, the head gives the logits (phi_0 z, phi_1 z). Client 0 has the images 1 and 2 with labels 0
and 1, client 1 the image 3 with label 1, the server the image 4 with label 0.
"""

import math

import numpy as np
import pytest
import torch
import toys
from torch import nn

from manyheads.algorithms.fedavg import FedAvg
from manyheads.algorithms.fedper import FedPer
from manyheads.algorithms.pfedkdh import PFedKDH
from manyheads.data.dataset import Dataset, Split
from manyheads.data.partition import Partition
from manyheads.models import SplitModel

LR = 0.1
THETA, PHI = 0.5, (1.0, -1.0)
CLIENTS = {0: ([1.0, 2.0], [0, 1]), 1: ([3.0], [1])}
AUXILIARY = ([4.0], [0])


def linear():
    backbone = nn.Sequential(nn.Flatten(), nn.Linear(1, 1, bias=False))
    model = SplitModel(backbone, nn.Linear(1, 2, bias=False))
    with torch.no_grad():
        backbone[1].weight.fill_(THETA)
        model.head.weight.copy_(torch.tensor(PHI)[:, None])
    return model


def run(algorithm, rounds=1, **values):
    def split(pixels, labels):
        return Split(np.array(pixels, np.uint8).reshape(-1, 1, 1, 1), np.array(labels))

    data = Dataset("pixels", split([1, 2, 3, 4], [0, 1, 1, 0]), split([1, 2], [0, 1]), ("0", "1"), (0.0,), (1 / 255,))

    def rows(*some):
        return np.array(some, np.int64)

    parts = Partition((rows(0, 1), rows(2)), (rows(), rows()), (rows(0), rows(1)), rows(3))
    values = {"train__rounds": rounds, "train__epochs": 2, "train__batch": 64, "train__lr": LR, **values}
    return toys.run(algorithm, dataset=data, partition=parts, model=linear, cohorts=[[0, 1]] * rounds, **values)


def softmax(logits):
    exp = [math.exp(v) for v in logits]
    return [e / sum(exp) for e in exp]


def trained(theta, phi, images, labels, epochs, body=True, teacher=None, share=0.0, t=1.0, mu=0.0):
    """SGD on (1 - share) CE + share t^2 KL(teacher || student) + mu / 2 (theta - its start)^2, full batch."""
    start = theta
    for _ in range(epochs):
        g_theta, g_phi = mu * (theta - start), [0.0, 0.0]
        for x, y in zip(images, labels, strict=True):
            z = theta * x
            p = softmax([f * z for f in phi])
            soft = softmax([f * z / t for f in phi])
            wanted = softmax([f * start * x / t for f in teacher]) if teacher else soft
            for c in (0, 1):
                g = (1 - share) * (p[c] - (y == c)) + share * t * (soft[c] - wanted[c])
                g_phi[c] += g * z / len(images)
                g_theta += g * phi[c] * x / len(images)
        theta = theta - LR * g_theta if body else theta
        phi = [f - LR * g for f, g in zip(phi, g_phi, strict=True)]
    return theta, phi


def server(result):
    return result.server.model["backbone.1.weight"].item(), result.server.model["head.weight"].flatten().tolist()


def head(result, client):
    return result.private[client].model["head.weight"].flatten().tolist()


def test_fedavg():
    result = run(FedAvg())
    (t0, p0), (t1, p1) = (trained(THETA, PHI, *CLIENTS[k], epochs=2) for k in (0, 1))
    theta, phi = server(result)
    assert theta == pytest.approx((2 * t0 + t1) / 3, rel=1e-6)
    assert phi == pytest.approx([(2 * a + b) / 3 for a, b in zip(p0, p1, strict=True)], rel=1e-6)
    assert t0 != pytest.approx(t1, rel=1e-3)


def test_fedper():
    result = run(FedPer(), rounds=2)
    theta, heads = THETA, {0: PHI, 1: PHI}
    for _ in range(2):
        local = {k: trained(theta, heads[k], *CLIENTS[k], epochs=2) for k in (0, 1)}
        theta = (2 * local[0][0] + local[1][0]) / 3
        heads = {k: phi for k, (_, phi) in local.items()}
    found, untouched = server(result)
    assert found == pytest.approx(theta, rel=1e-6)
    assert untouched == list(PHI)
    for client, phi in heads.items():
        assert head(result, client) == pytest.approx(phi, rel=1e-6)


@pytest.mark.parametrize("warmup", [0, 1])
def test_pfedkdh(warmup):
    share, t, mu = 0.4, 2.0, 0.5
    method = PFedKDH(
        kd_weight=share, temperature=t, prox_weight=mu, warmup_epochs=warmup, recalibration_epochs=2, adapt_steps=1
    )
    result = run(method, rounds=2)
    theta, teacher = trained(THETA, PHI, *AUXILIARY, epochs=warmup)
    _, teacher = trained(theta, teacher, *AUXILIARY, epochs=2, body=False)
    heads = {0: PHI, 1: PHI}
    for _ in range(2):
        local = {
            k: trained(theta, heads[k], *CLIENTS[k], epochs=2, teacher=teacher, share=share, t=t, mu=mu) for k in (0, 1)
        }
        theta = (2 * local[0][0] + local[1][0]) / 3
        heads = {k: phi for k, (_, phi) in local.items()}
        _, teacher = trained(theta, teacher, *AUXILIARY, epochs=2, body=False)
    found, found_teacher = server(result)
    assert found == pytest.approx(theta, rel=1e-6)
    assert found_teacher == pytest.approx(teacher, rel=1e-6)
    for client, phi in heads.items():
        assert head(result, client) == pytest.approx(phi, rel=1e-6)


def test_the_terms_of_the_loss_are_logged():
    images, labels = CLIENTS[1]
    rows = run(PFedKDH(kd_weight=0.5, prox_weight=0.0, recalibration_epochs=0), train__epochs=1).rows
    # the only step sees the initial model: distillation from an equal head is 0
    logits = [f * THETA * images[0] for f in PHI]
    ce1 = -math.log(softmax(logits)[labels[0]])
    ce0 = sum(-math.log(softmax([f * THETA * x for f in PHI])[y]) for x, y in zip(*CLIENTS[0], strict=True)) / 2
    assert rows[1]["loss"] == {"ce": pytest.approx(0.5 * (2 * ce0 + ce1) / 3), "kd": 0.0, "prox": 0.0}
