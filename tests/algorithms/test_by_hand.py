"""Rounds of two clients and three numbers against formulas written out; see ``hand``."""

import math

import pytest
from hand import AUXILIARY, CLIENTS, PHI, THETA, head, run, server, softmax, trained

from manyheads.algorithms.fedavg import FedAvg
from manyheads.algorithms.fedper import FedPer
from manyheads.algorithms.pfedkdh import PFedKDH


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
        assert head(result.private[client].model) == pytest.approx(phi, rel=1e-6)


@pytest.mark.parametrize("warmup", [0, 1])
def test_pfedkdh(warmup):
    share, t, mu = 0.4, 2.0, 0.5
    method = PFedKDH(
        kd_weight=share,
        temperature=t,
        prox_weight=mu,
        warmup_epochs=warmup,
        calibration_epochs=2,
        recalibration_epochs=2,
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
        assert head(result.private[client].model) == pytest.approx(phi, rel=1e-6)


def test_the_terms_of_the_loss_are_logged():
    images, labels = CLIENTS[1]
    rows = run(PFedKDH(kd_weight=0.5, prox_weight=0.0, calibration_epochs=0), train__epochs=1).rows
    # the only step sees the initial model: distillation from an equal head is 0
    logits = [f * THETA * images[0] for f in PHI]
    ce1 = -math.log(softmax(logits)[labels[0]])
    ce0 = sum(-math.log(softmax([f * THETA * x for f in PHI])[y]) for x, y in zip(*CLIENTS[0], strict=True)) / 2
    assert rows[1]["loss"] == {"ce": pytest.approx(0.5 * (2 * ce0 + ce1) / 3), "kd": 0.0, "prox": 0.0}
