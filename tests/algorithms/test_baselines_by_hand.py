"""The classic baselines against steps written out one by one; see ``hand``. A model is ``[theta, phi_0, phi_1]``."""

import numpy as np
import pytest
import toys
from hand import CLIENTS, LR, PHI, THETA, head, linear, run, server, trained

from manyheads.algorithms.ditto import Ditto
from manyheads.algorithms.fedavg_ft import FedAvgFT
from manyheads.algorithms.fedbabu import FedBABU
from manyheads.algorithms.fedprox import FedProx
from manyheads.algorithms.fedrep import FedRep
from manyheads.algorithms.lg_fedavg import LGFedAvg
from manyheads.local.network import Network

START = np.array([THETA, *PHI])
ALL, BODY, HEAD = np.array([True] * 3), np.array([True, False, False]), np.array([False, True, True])


def descended(w, client, steps, moves=ALL, near=START, mu=0.0):
    """Steps of SGD on the client's images, full batch: CE + mu / 2 ||w - near||^2, of what moves."""
    for _ in range(steps):
        theta, phi = trained(w[0], w[1:], *CLIENTS[client], epochs=1)
        w = np.where(moves, np.array([theta, *phi]) - LR * mu * (w - near), w)
    return w


def averaged(local):
    """By numbers of images, 2 and 1."""
    return (2 * local[0] + local[1]) / 3


def shared(result):
    """The model of the server."""
    theta, phi = server(result)
    return [theta, *phi]


def close(expected):
    return pytest.approx(list(expected), rel=1e-5)


def numbers(tree):
    return [tree["backbone.1.weight"].item(), *tree["head.weight"].flatten().tolist()]


def tuned(method):
    """What ``adapt`` makes of 0.8 times the initial model at client 0, in a run of 2 local epochs."""
    ctx = toys.context(Network(linear().parts()), epochs=2)
    return numbers(method.adapt(ctx.initial * 0.8, toys.data(*CLIENTS[0]), ctx))


def test_fedprox():
    mu = 0.5
    result, w = run(FedProx(prox_weight=mu), rounds=2, train__epochs=3), START
    for _ in range(2):
        w = averaged([descended(w, k, 3, near=w, mu=mu) for k in CLIENTS])
    assert shared(result) == close(w)


@pytest.mark.parametrize("own_epochs", [None, 3])
def test_ditto(own_epochs):
    mu = 0.5
    result = run(Ditto(prox_weight=mu, personal_epochs=own_epochs), rounds=3)
    w, own = START, {k: START for k in CLIENTS}
    for _ in range(3):  # from the second round on what is received is neither the initial model nor one's own
        own = {k: descended(v, k, own_epochs or 2, near=w, mu=mu) for k, v in own.items()}
        w = averaged([descended(w, k, 2) for k in CLIENTS])
    assert shared(result) == close(w)
    for k, v in own.items():
        assert numbers(result.private[k].personal) == close(v)


def test_the_training_of_fedbabu():
    result, w = run(FedBABU(), rounds=2), START
    for _ in range(2):
        w = averaged([descended(w, k, 2, BODY) for k in CLIENTS])
    assert shared(result) == close(w)
    assert w[1:].tolist() == list(PHI)
    assert [head(kept.model) for kept in result.private.values()] == [list(PHI)] * 2


@pytest.mark.parametrize(
    ("method", "steps", "moves"),
    [
        (FedBABU(), 5, ALL),
        (FedBABU(tune="head", tune_epochs=3), 3, HEAD),
        (FedBABU(tune_epochs=None), 2, ALL),
        (FedAvgFT(), 2, ALL),
        (FedAvgFT(tune_epochs=4), 4, ALL),
        (FedAvgFT(tune="head"), 2, HEAD),
        (FedAvgFT(tune="head", tune_steps=3), 3, HEAD),
    ],
)
def test_tuning(method, steps, moves):
    assert tuned(method) == close(descended(0.8 * START, 0, steps, moves))


def test_the_training_of_fedavg_with_fine_tuning():
    result, w = run(FedAvgFT(), rounds=2), START
    for _ in range(2):
        w = averaged([descended(w, k, 2) for k in CLIENTS])
    assert shared(result) == close(w)


def test_lg_fedavg():
    result = run(LGFedAvg(), rounds=2)
    phi, thetas = START[1:], {k: THETA for k in CLIENTS}
    for _ in range(2):
        local = {k: descended(np.array([thetas[k], *phi]), k, 2) for k in CLIENTS}
        thetas = {k: w[0] for k, w in local.items()}
        phi = averaged(local)[1:]
    assert shared(result) == close([THETA, *phi])  # nobody sends a backbone
    for k, theta in thetas.items():
        assert head(result.private[k].model) == close([theta])


@pytest.mark.parametrize(
    ("method", "heads", "bodies"), [(FedRep(), 2, 1), (FedRep(backbone_epochs=2, head_epochs=1), 1, 2)]
)
def test_fedrep(method, heads, bodies):
    result = run(method, rounds=2, train__epochs=3)
    theta, phis = THETA, {k: PHI for k in CLIENTS}
    for _ in range(2):
        local = {k: np.array([theta, *phis[k]]) for k in CLIENTS}
        local = {k: descended(descended(w, k, heads, HEAD), k, bodies, BODY) for k, w in local.items()}
        theta = averaged(local)[0]
        phis = {k: w[1:] for k, w in local.items()}
    assert shared(result) == close([theta, *PHI])  # nobody sends a head
    for k, phi in phis.items():
        assert head(result.private[k].model) == close(phi)
