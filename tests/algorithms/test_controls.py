"""Controls: methods and numbers that show how much of a result is the method's."""

import math

import pytest
import torch
import toys
from hand import AUXILIARY, CLIENTS, PHI, THETA, run, server, trained

from manyheads.algorithms.fedavg import FedAvg
from manyheads.algorithms.fedavg_aux import FedAvgAux
from manyheads.algorithms.fedavg_ft import FedAvgFT
from manyheads.algorithms.fedavg_recal import FedAvgRecal
from manyheads.algorithms.fedper import FedPer
from manyheads.algorithms.fedper_aux import FedPerAux
from manyheads.algorithms.fedprox import FedProx
from manyheads.algorithms.pfedkdh import PFedKDH
from manyheads.contract import Predictor
from manyheads.errors import InputError
from manyheads.local.prior import with_prior

IMAGES = {**CLIENTS, 2: AUXILIARY}
SIZES = {k: len(images) for k, (images, _) in IMAGES.items()}


def mean(values):
    return sum(SIZES[k] * value for k, value in values.items()) / sum(SIZES.values())


def test_the_auxiliary_set_as_one_more_client_of_fedavg_by_hand():
    result = run(FedAvgAux(), rounds=2)
    theta, phi = THETA, PHI
    for _ in range(2):
        local = {k: trained(theta, phi, *data, epochs=2) for k, data in IMAGES.items()}
        theta = mean({k: t for k, (t, _) in local.items()})
        phi = [mean({k: p[c] for k, (_, p) in local.items()}) for c in (0, 1)]
    found, head = server(result)
    assert found == pytest.approx(theta, rel=1e-6)
    assert head == pytest.approx(phi, rel=1e-6)


def test_the_auxiliary_set_as_one_more_client_of_fedper_by_hand():
    result = run(FedPerAux(), rounds=2)
    theta, heads = THETA, dict.fromkeys(IMAGES, PHI)
    for _ in range(2):
        local = {k: trained(theta, heads[k], *data, epochs=2) for k, data in IMAGES.items()}
        theta = mean({k: t for k, (t, _) in local.items()})
        heads = {k: p for k, (_, p) in local.items()}
    found, head = server(result)
    assert found == pytest.approx(theta, rel=1e-6)
    assert head == pytest.approx(heads[2], rel=1e-6)  # the server's own, which no client sees
    for k in CLIENTS:
        assert result.private[k].model["head.weight"].flatten().tolist() == pytest.approx(heads[k], rel=1e-6)


def test_the_recalibrated_head_of_fedavg_by_hand():
    result = run(FedAvgRecal(calibration_epochs=1, recalibration_epochs=2), rounds=2)
    theta, phi = trained(THETA, PHI, *AUXILIARY, epochs=1, body=False)
    for _ in range(2):
        local = {k: trained(theta, phi, *data, epochs=2) for k, data in CLIENTS.items()}
        theta = sum(SIZES[k] * t for k, (t, _) in local.items()) / 3
        phi = [sum(SIZES[k] * p[c] for k, (_, p) in local.items()) / 3 for c in (0, 1)]
        _, phi = trained(theta, phi, *AUXILIARY, epochs=2, body=False)
    found, head = server(result)
    assert found == pytest.approx(theta, rel=1e-6)
    assert head == pytest.approx(phi, rel=1e-6)


@pytest.mark.parametrize("cohorts", [[range(6)] * 3, toys.COHORTS], ids=["all", "half"])
def test_without_epochs_at_the_server_it_is_fedavg(cohorts):
    still = FedAvgRecal(calibration_epochs=0, recalibration_epochs=0)
    assert toys.run(still, cohorts=cohorts).server == toys.run(FedAvg(), cohorts=cohorts).server
    assert toys.run(FedAvgRecal(), cohorts=cohorts).server != toys.run(FedAvg(), cohorts=cohorts).server


@pytest.mark.parametrize("method", [FedAvgAux(), FedPerAux(), FedAvgRecal()])
def test_an_auxiliary_set_is_needed(method, tmp_path):
    with pytest.raises(InputError, match=r"^data\.auxiliary = 0: this method trains on an auxiliary set"):
        toys.run(method, tmp_path / "run", partition=toys.partition(auxiliary=0))
    assert not (tmp_path / "run").exists()


def test_nothing_more_crosses_the_wire(overheard):
    def heard(method):
        overheard.clear()
        toys.run(method)
        return {key: len(upload) for key, upload in overheard.items()}

    assert heard(FedAvgAux()) == heard(FedAvgRecal()) == heard(FedAvg())
    assert heard(FedPerAux()) == heard(FedPer())


def test_fine_tuning_has_the_steps_of_pfedkdhs_adaptation():
    seen = []
    tuned, ea = FedAvgFT(tune="head", tune_steps=10), PFedKDH(adapt_steps=10)
    for method in (tuned, ea):
        stage = toys.setting(method)
        ctx, data = stage.client(2, 0), stage.parties.train(0)
        seen.append(method.adapt(stage.network.initial, data, ctx))
    assert seen[0] == seen[1] != stage.network.initial


# the prior


def test_the_prior_by_hand():
    stage = toys.setting(FedAvg())
    initial, ctx = stage.network.initial, stage.client(0, 0)
    x, y = torch.randn(5, 1, 8, 8), torch.tensor([0, 0, 0, 2])
    plain = Predictor(initial, FedAvg().logits)
    shifted = with_prior(plain, y, 4)
    model = ctx.model(initial)
    shares = [3 / 4.2, 0.1 / 4.2, 1 / 4.2, 0.1 / 4.2]  # an absent class counts as a tenth of an image
    expected = plain.logits(model, x) + torch.tensor([math.log(share) for share in shares])
    torch.testing.assert_close(shifted.logits(model, x), expected)
    assert shifted.tree is initial


@pytest.mark.parametrize("method", [FedAvg(), FedProx(), FedAvgAux(), PFedKDH()])
def test_global_models_have_a_variant_with_the_clients_prior(method):
    result = toys.run(method)
    last = result.rows[-1]["metrics"]
    moments = {(m["moment"], m["model"], m["data"]) for m in last if m["variant"] == "prior"}
    assert moments == {("post_agg", "personal", "client test")}
    found = next(m for m in last if m["variant"] == "prior" and m["average"] == "macro")
    # counted by hand: the server's model, with the log of each client's shares
    stage = toys.setting(method)
    ctx, parties = stage.client(3, 0), stage.parties
    model = ctx.model(result.server.model)
    right = []
    for client in found["tested"]:
        rows, labels = parties.test_rows(client), parties.train(client).y
        counts = torch.tensor([max(float((labels == c).sum()), 0.1) for c in range(toys.CLASSES)])
        with torch.no_grad():
            answer = method.logits(model, parties.test.x(rows)) + counts.log()
        right.append(int((answer.argmax(dim=1) == parties.test.y[rows]).sum()))
    assert found["correct"] == right


def test_personal_methods_have_none():
    assert not any(m["variant"] for row in toys.run(FedPerAux()).rows for m in row["metrics"])
