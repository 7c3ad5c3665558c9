"""Methods with a step or a server rule of their own against formulas written out in numpy; see ``hand``.

A model is three numbers, ``[theta, phi_0, phi_1]``. With the clients of ``hand`` a round is two steps of one batch.
"""

from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
import toys
from hand import CLIENTS, LR, PHI, THETA, linear, run

from manyheads.algorithms.apfl import APFL
from manyheads.algorithms.feddyn import FedDyn
from manyheads.algorithms.fednova import FedNova
from manyheads.algorithms.per_fedavg import PerFedAvg
from manyheads.algorithms.pfedme import PFedMe
from manyheads.algorithms.scaffold import Scaffold
from manyheads.contract import SGD, Broadcast, ServerState, Upload
from manyheads.local.network import Network

START = np.array([THETA, *PHI])
SHARES = {0: 2 / 3, 1: 1 / 3}
TURNS = [[0, 1], [0], [1], [0, 1]]  # both, one, the other, both
SAME = {0: ([1.0] * 6, [0] * 6), 1: ([3.0, 3.0], [1, 1])}  # with batches of 2: three steps an epoch, and one


def gradient(w, images, labels):
    """Of the mean cross-entropy, where the logits of x are ``(phi_0, phi_1) theta x``."""
    x, phi = np.array(images), w[1:]
    exp = np.exp(np.outer(w[0] * x, phi))
    error = exp / exp.sum(axis=1, keepdims=True) - np.eye(2)[labels]
    return np.array([np.mean(error @ phi * x), *np.mean(error * (w[0] * x)[:, None], axis=0)])


def numbers(tree):
    return [tree["backbone.1.weight"].item(), *tree["head.weight"].flatten().tolist()]


def near(expected):
    return pytest.approx(expected, rel=2e-5, abs=1e-6)


def test_the_gradient_is_that_of_the_loss():
    def loss(w):
        logits = np.outer(w[0] * np.array(CLIENTS[0][0]), w[1:])
        return np.mean(np.log(np.exp(logits).sum(axis=1)) - logits[[0, 1], CLIENTS[0][1]])

    w = np.array([0.7, 0.3, -0.2])
    slopes = [(loss(w + step) - loss(w - step)) / 2e-5 for step in 1e-5 * np.eye(3)]
    assert gradient(w, *CLIENTS[0]) == pytest.approx(slopes, rel=1e-6)


def test_pfedme():
    prox, inner, personal_lr, lr, beta = 2.0, 3, 0.2, 0.25, 0.6
    result = run(PFedMe(prox_weight=prox, inner_steps=inner, personal_lr=personal_lr, lr=lr, beta=beta), rounds=2)
    w = START
    for _ in range(2):
        local, thetas = {}, {}
        for k, data in CLIENTS.items():
            mine = theta = w
            for _ in range(2):
                for _ in range(inner):
                    theta = theta - personal_lr * (gradient(theta, *data) + prox * (theta - mine))
                mine = mine - lr * prox * (mine - theta)
            local[k], thetas[k] = mine, theta
        w = (1 - beta) * w + beta * sum(SHARES[k] * local[k] for k in CLIENTS)
    assert numbers(result.server.model) == near(w)
    for k in CLIENTS:
        assert numbers(result.private[k].theta) == near(thetas[k])
        assert np.abs(thetas[k] - local[k]).max() > 0.01


def test_pfedme_with_mini_batches_counted_and_a_part_of_the_clients_averaged():
    """As in its paper: all clients train, for R mini-batches, and the server averages those that it draws."""
    method = PFedMe(prox_weight=2.0, personal_lr=0.2, lr=0.25, local_rounds=2, averaged=0.5)
    w, chosen = START, []
    for rounds in range(1, 9):
        local = {}
        for k, data in SAME.items():
            mine = theta = w
            for _ in range(2):  # less than an epoch of client 0, which has three batches, and two of client 1
                for _ in range(5):
                    theta = theta - 0.2 * (gradient(theta, *data) + 2.0 * (theta - mine))
                mine = mine - 0.25 * 2.0 * (mine - theta)
            local[k] = mine
        w = np.array(numbers(run(method, rounds, SAME, train__batch=2).server.model))
        chosen += [k for k in SAME if w == pytest.approx(local[k], rel=1e-4, abs=1e-5)]
    assert len(chosen) == 8  # the server took exactly one of them in every round
    assert set(chosen) == {0, 1}


@pytest.mark.parametrize(("averaged", "took"), [(1.0, 3), (0.83, 2), (0.5, 2), (0.49, 1), (0.01, 1)])
def test_how_many_pfedme_averages(averaged, took):
    """The share is of the clients that have answered, rounded half up, and at least one."""
    ctx = toys.setting().server(0)
    uploads = {k: Upload(model=ctx.initial.map(lambda t, k=k: torch.full_like(t, 2.0**k)), weight=1) for k in (1, 4, 9)}
    server = PFedMe(averaged=averaged).aggregate(ServerState(model=ctx.initial), uploads, ctx)
    total = round(took * next(iter(server.model.values())).flatten()[0].item())
    assert total.bit_count() == took
    assert total & ~(2 + 16 + 512) == 0


def test_scaffold():
    server_lr = 0.7
    result = run(Scaffold(server_lr=server_lr), rounds=4, cohorts=TURNS)
    w, c, own = START, np.zeros(3), {0: np.zeros(3), 1: np.zeros(3)}
    for cohort in TURNS:
        moves, changes = [], []
        for k in cohort:
            y = w
            for _ in range(2):
                y = y - LR * (gradient(y, *CLIENTS[k]) + c - own[k])
            new = own[k] - c + (w - y) / (2 * LR)
            moves.append(y - w)
            changes.append(new - own[k])
            own[k] = new
        w = w + server_lr * sum(moves) / len(cohort)
        c = c + len(cohort) / 2 * sum(changes) / len(cohort)
    assert numbers(result.server.model) == near(w)
    assert numbers(result.server.control) == near(c)
    for k in CLIENTS:
        assert numbers(result.private[k].control) == near(own[k])
        assert np.abs(own[k]).max() > 0.01


def test_scaffold_counts_the_steps_of_every_client():
    result = run(Scaffold(), clients=SAME, train__batch=2)
    for k, steps in ((0, 6), (1, 2)):
        y = START
        for _ in range(steps):
            y = y - LR * gradient(y, *SAME[k])
        assert numbers(result.private[k].control) == near((START - y) / (steps * LR))


def test_feddyn():
    alpha, decay = 0.3, 0.05
    result = run(FedDyn(alpha=alpha), rounds=4, cohorts=TURNS, train__weight_decay=decay)
    w, h, g = START, np.zeros(3), {0: np.zeros(3), 1: np.zeros(3)}
    for cohort in TURNS:
        local = {}
        for k in cohort:
            v = w
            for _ in range(2):
                v = v - LR * (gradient(v, *CLIENTS[k]) - g[k] + alpha * (v - w) + decay * v)
            local[k] = v
            g[k] = g[k] - alpha * (v - w)
        h = h - alpha / 2 * sum(v - w for v in local.values())
        mean = sum(local.values()) / len(cohort)
        w = mean - h / alpha
    assert numbers(result.server.model) == near(w)
    assert numbers(result.server.mean) == near(mean)
    assert numbers(result.server.h) == near(h)
    for k in CLIENTS:
        assert numbers(result.private[k].g) == near(g[k])
    assert np.abs(w - mean).max() > 0.01


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_fednova(momentum):
    result = run(FedNova(), rounds=2, clients=SAME, train__batch=2, train__momentum=momentum)
    shares, steps, w = {0: 6 / 8, 1: 2 / 8}, {0: 6, 1: 2}, START
    for _ in range(2):
        norms, directions = {}, {}
        for k in SAME:
            y, velocity, gradients = w, 0.0, []
            for _ in range(steps[k]):
                gradients.append(gradient(y, *SAME[k]))
                velocity = momentum * velocity + gradients[-1]
                y = y - LR * velocity
            # y - w is -LR times the gradients, each with a weight; the norm is the sum of these
            weights = [sum(momentum**later for later in range(steps[k] - j)) for j in range(steps[k])]
            assert (w - y) / LR == pytest.approx(sum(a * g for a, g in zip(weights, gradients, strict=True)))
            norms[k] = sum(weights)
            directions[k] = (w - y) / (LR * norms[k])
        mean_norm = sum(shares[k] * norms[k] for k in SAME)
        w = w - mean_norm * LR * sum(shares[k] * directions[k] for k in SAME)
    assert numbers(result.server.model) == near(w)


@pytest.mark.parametrize("adaptive", [True, False])
def test_apfl(adaptive):
    start = 0.6
    result = run(APFL(alpha=start, adaptive=adaptive), rounds=3)
    shared, own, alphas = START, {0: START, 1: START}, {0: start, 1: start}
    for _ in range(3):
        local = {}
        for k, data in CLIENTS.items():
            w, v, alpha = shared, own[k], alphas[k]
            for number in range(2):
                of_w = gradient(w, *data)
                mixed = gradient(alpha * v + (1 - alpha) * w, *data)
                slope = np.dot(v - w, mixed)
                w, v = w - LR * of_w, v - LR * alpha * mixed
                if adaptive and number == 0:
                    alpha = min(1.0, max(0.0, alpha - LR * slope))
            local[k], own[k], alphas[k] = w, v, alpha
        shared = sum(SHARES[k] * local[k] for k in CLIENTS)
    assert numbers(result.server.model) == near(shared)
    for k in CLIENTS:
        assert numbers(result.private[k].own) == near(own[k])
        assert result.private[k].alpha == near(alphas[k])
        assert result.rows[-1]["notes"]["alpha"][str(k)] == result.private[k].alpha
        assert (abs(alphas[k] - start) > 1e-3) == adaptive


def test_the_personal_model_of_apfl_is_the_mixture():
    result = run(APFL(alpha=0.6), rounds=2)
    kept, received = result.private[0], Broadcast(model=result.server.model)
    mixture = APFL().personal(received, kept, toys.data([1.0]), toys.context(Network(linear().parts()))).tree
    own, shared = np.array(numbers(kept.own)), np.array(numbers(received.model))
    assert numbers(mixture) == near(kept.alpha * own + (1 - kept.alpha) * shared)


def test_alpha_stays_between_0_and_1():
    # Steps so large that alpha would leave the interval: where it moves at all, it ends at one of its ends.
    result = run(APFL(), rounds=3, train__lr=20.0, train__epochs=1)
    found = {kept.alpha for kept in result.private.values()}
    assert found <= {0.0, 0.5, 1.0}
    assert found & {0.0, 1.0}


@dataclass(frozen=True)
class Listening(PerFedAvg):
    """Writes down the images of every batch at which it takes a gradient."""

    heard: list = field(default_factory=list)

    def loss(self, m, b):
        self.heard.append(b.x.flatten().round().tolist())
        return super().loss(m, b)

    def adapt(self, model, data, ctx):
        return None  # which would be heard as well


@pytest.mark.parametrize("variant", ["first_order", "hessian_free"])
def test_per_fedavg(variant):
    inner, outer, delta = 0.5, 0.2, 0.1
    labels = {1.0: 0, 2.0: 1, 3.0: 0}
    images = [1.0, 1.0, 2.0, 2.0, 3.0, 3.0, 1.0, 3.0]
    clients = {0: (images, [labels[x] for x in images]), 1: CLIENTS[1]}
    method = Listening(variant=variant, inner_lr=inner, outer_lr=outer, delta=delta)
    result = run(method, clients=clients, train__batch=2, cohorts=[[0]])

    def at(w, batch):
        return gradient(w, batch, [labels[x] for x in batch])

    calls = {"first_order": 2, "hessian_free": 4}[variant]  # the Hessian takes two, on the same batch
    steps = [method.heard[start : start + calls] for start in range(0, len(method.heard), calls)]
    w = START
    for first, second, *third in steps:
        direction = at(w - inner * at(w, first), second)
        if variant == "hessian_free":
            assert third[0] == third[1]
            ahead, behind = (at(w + sign * delta * direction, third[0]) for sign in (1, -1))
            direction = direction - inner * (ahead - behind) / (2 * delta)
        w = w - outer * direction
    assert numbers(result.server.model) == near(w)

    # two epochs of four batches, in pairs, or in threes of which the last takes the first two again
    one, two, *rest = steps
    assert len(rest) == 2
    visited = one + two if variant == "first_order" else one[:3] + two[:1]
    assert sorted(x for batch in visited for x in batch) == sorted(images)
    assert variant == "first_order" or two[1:3] == one[:2]


def test_per_fedavg_tests_after_one_plain_step():
    method = PerFedAvg(inner_lr=0.5)
    ctx = toys.context(Network(linear().parts()), sgd=SGD(0.1, momentum=0.9, weight_decay=0.1, clip=0.01))
    adapted = method.adapt(ctx.initial, toys.data(*CLIENTS[0]), ctx)
    assert numbers(adapted) == near(START - 0.5 * gradient(START, *CLIENTS[0]))
    assert toys.metrics(run(method), "personal", "post_adapt")[-1]


@pytest.mark.parametrize("method", [PFedMe(), Scaffold(), APFL(), PerFedAvg(), PerFedAvg(variant="hessian_free")])
def test_step_rules_are_plain(method):
    plain, other = run(method), run(method, train__momentum=0.9, train__weight_decay=0.1, train__clip=0.01)
    assert plain.server == other.server
    assert plain.private == other.private


def test_pfedme_has_learning_rates_of_its_own():
    assert run(PFedMe()).server == run(PFedMe(), train__lr=0.7).server


def test_the_outer_rate_of_per_fedavg_is_the_run_s_unless_given():
    assert run(PerFedAvg()).server == run(PerFedAvg(outer_lr=LR), train__lr=0.7).server
    assert run(PerFedAvg()).server != run(PerFedAvg(), train__lr=0.7).server
