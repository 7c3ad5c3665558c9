"""Methods of heads, features and prototypes: what they become without their parts, and what must never happen."""

from functools import cache
from itertools import combinations

import pytest
import torch
import toys
from torch import nn

from manyheads.algorithms import fedpac
from manyheads.algorithms.fedala import FedALA
from manyheads.algorithms.fedavg import FedAvg
from manyheads.algorithms.fedcp import FedCP
from manyheads.algorithms.fedgh import FedGH
from manyheads.algorithms.fedpac import FedPAC
from manyheads.algorithms.fedproto import FedProto
from manyheads.algorithms.fedrep import FedRep
from manyheads.algorithms.fedrod import FedRoD
from manyheads.algorithms.moon import Moon
from manyheads.algorithms.pfedsim import PFedSim
from manyheads.contract import Algorithm, Broadcast, PrivateState, Upload
from manyheads.errors import InputError
from manyheads.local.client import ClientRoom
from manyheads.models import SplitModel

EVERYONE = tuple([tuple(range(6))] * 3)
both = pytest.mark.parametrize("cohorts", [EVERYONE, toys.COHORTS], ids=["all", "half"])
AFTER = ("post_agg", "macro")
QUICK = FedALA(most_epochs=3)
METHODS = (FedProto(), FedPAC(), FedGH(), PFedSim(), FedRoD(), Moon(), QUICK, FedCP())


@cache
def ran(method, cohorts, **values):
    """The result of a run; runs are shared by the tests of this file."""
    return toys.run(method, cohorts=cohorts, **values)


class FedAvgOnMoonsNetwork(Moon):
    """FedAvg with MOON's projection."""

    loss, prepare, update = Algorithm.loss, Algorithm.prepare, Algorithm.update


@both
def test_fedala_with_still_weights_is_fedavg(cohorts):
    ala, plain = ran(FedALA(learned=False), cohorts), ran(FedAvg(), cohorts)
    assert ala.server == plain.server
    assert toys.metrics(ala, "global", "post_agg") == toys.metrics(plain, "global", "post_agg")
    assert ran(QUICK, cohorts).server != plain.server


@both
def test_moon_without_its_term_is_fedavg_on_its_network(cohorts):
    moon, plain = ran(Moon(contrast_weight=0.0), cohorts), ran(FedAvgOnMoonsNetwork(), cohorts)
    assert moon.server == plain.server
    assert {name.partition(".")[0] for name in moon.server.model} == {"backbone", "projection", "head"}
    assert ran(Moon(contrast_weight=1.0), cohorts).server != plain.server


@both
def test_fedpac_of_own_heads_without_its_term_is_fedrep(cohorts, monkeypatch):
    monkeypatch.setattr(fedpac, "collaboration", lambda uploads: {client: {client: 1.0} for client in uploads})
    pac = toys.run(FedPAC(proto_weight=0.0, head_epochs=1, head_lr=None), cohorts=cohorts)
    rep = ran(FedRep(head_epochs=1, backbone_epochs=2), cohorts)
    assert pac.server.model == rep.server.model
    # Each head is at the right client, also where the cohort is 1, 3, 4.
    assert pac.server.heads == {client: kept.model for client, kept in rep.private.items()}
    assert toys.metrics(pac, "personal", "post_agg") == toys.metrics(rep, "personal", "post_agg")


def test_fedpac_mixes_the_heads_of_its_cohort(overheard):
    result = toys.run(FedPAC())
    uploads = {client: Upload.from_bytes(overheard[2, client]) for client in toys.COHORTS[2]}
    moved = False
    for client, mix in fedpac.collaboration(uploads).items():
        for name, found in result.server.heads[client].items():
            expected = sum(weight * uploads[other].model[name].double() for other, weight in mix.items())
            torch.testing.assert_close(found, expected.float())
            moved |= len(mix) > 1
    assert moved
    # Others keep theirs, of the last round in which they were.
    earlier = {client: Upload.from_bytes(overheard[1, client]) for client in toys.COHORTS[1]}
    mix = fedpac.collaboration(earlier)[4]
    expected = sum(weight * earlier[other].model["head.weight"].double() for other, weight in mix.items())
    torch.testing.assert_close(result.server.heads[4]["head.weight"], expected.float())


def test_the_last_model_of_moon_is_the_client_s_own(overheard):
    result = toys.run(Moon())
    last_round = {client: t for t, cohort in enumerate(toys.COHORTS) for client in cohort}
    for client, kept in result.private.items():
        assert kept.last == Upload.from_bytes(overheard[last_round[client], client]).model


# FedALA


def test_tests_of_fedala_leave_no_trace():
    often, once = ran(QUICK, toys.COHORTS), toys.run(QUICK, run__eval_every=3)
    assert len([row for row in often.rows if row["metrics"]]) > len([row for row in once.rows if row["metrics"]])
    assert often.server == once.server
    assert often.private == once.private
    assert often.rows[-1]["metrics"] == once.rows[-1]["metrics"]


def test_what_fedala_keeps_belongs_to_the_client(overheard):
    result = toys.run(QUICK)
    last_round = {client: t for t, cohort in enumerate(toys.COHORTS) for client in cohort}
    for client, kept in result.private.items():
        upload = Upload.from_bytes(overheard[last_round[client], client])
        assert kept.last.part("head") == upload.model.part("head")
    again = {0, 1, 3}  # those who took part twice have learned a W; nobody else has one
    assert {client for client, kept in result.private.items() if "weights" in kept} == again
    weights = [result.private[client].weights for client in again]
    assert all(a != b for i, a in enumerate(weights) for b in weights[:i])
    assert all(0 <= float(t.min()) <= float(t.max()) <= 1 for tree in weights for t in tree.values())
    assert any(float(t.min()) < 1 for tree in weights for t in tree.values())


def test_a_client_s_first_round_of_fedala_begins_with_the_received_model():
    stage, plain = toys.setting(FedALA()), toys.setting(FedAvg())
    later = stage.network.initial * 0.5  # the client comes late: the shared model is not the initial one any more
    data, received = stage.parties.train(5), Broadcast(model=later)
    ala = FedALA().local_update(received, PrivateState(model=later.part("none")), data, stage.client(2, 5))
    avg = FedAvg().local_update(received, PrivateState(model=later.part("none")), data, plain.client(2, 5))
    assert ala.upload == avg.upload
    before = FedALA().personal(received, PrivateState(model=later.part("none")), data, stage.client(2, 5))
    assert before.tree == later


# variants, classes and clients that are missing


@pytest.mark.parametrize(("method", "variant"), [(FedProto(), "classifier"), (FedRoD(), "generic")])
def test_both_answers_are_measured(method, variant):
    rows = ran(method, toys.COHORTS).rows
    for moment, number in ("post_agg", 4), ("post_local", 3):
        for name in "", variant:
            found = [
                m["correct"]
                for row in rows
                for m in row["metrics"]
                if (m["model"], m["variant"], m["moment"], m["average"]) == ("personal", name, moment, "macro")
            ]
            assert len(found) == number
    answers = {name: ran(method, toys.COHORTS).accuracy(variant=name) for name in ("", variant)}
    assert answers[""] != answers[variant]


def test_the_head_answers_while_fedproto_knows_no_prototype():
    first, *_, last = ran(FedProto(), toys.COHORTS).rows
    by_name = {m["variant"]: m["correct"] for m in first["metrics"] if m["average"] == "macro"}
    assert by_name[""] == by_name["classifier"]
    by_name = {m["variant"]: m["correct"] for m in last["metrics"] if (m["moment"], m["average"]) == AFTER}
    assert by_name[""] != by_name["classifier"]


def test_a_class_keeps_its_prototype_while_nobody_holds_it(overheard):
    # Clients 2 (classes 2 and 3) and 3 (3 and 0) take part, then client 0 alone.
    result = toys.run(FedProto(), cohorts=[[2], [2], [0]])
    counts = {t: Upload.from_bytes(overheard[t, k]).counts for t, k in [(0, 2), (1, 2), (2, 0)]}
    kept = (counts[1] > 0) & (counts[2] == 0)
    never = (counts[1] == 0) & (counts[2] == 0)
    assert kept.any()
    assert torch.equal(result.server.prototypes[kept], Upload.from_bytes(overheard[1, 2]).means[kept])
    assert torch.equal(result.server.known, 1.0 - never.float())


def test_prototypes_are_of_the_trained_model_without_dropout(overheard):
    for method in FedProto(), FedGH(), FedPAC():
        result = toys.run(method, train__rounds=1)
        stage = toys.setting(method)
        for client in toys.COHORTS[0]:
            sent = Upload.from_bytes(overheard[0, client])
            model = result.private[client].model | sent.model
            data = stage.parties.train(client)
            z = stage.network.model(model).backbone(data.x(torch.arange(len(data))))
            for label in data.y.unique():
                torch.testing.assert_close(sent.means[label], z[data.y == label].mean(dim=0), rtol=1e-4, atol=1e-5)
            assert sent.counts.tolist() == torch.bincount(data.y, minlength=toys.CLASSES).tolist()


def test_nobody_trains_fedgh_s_head_but_the_server(overheard):
    result = toys.run(FedGH(), train__rounds=1)
    initial = toys.setting(FedGH()).network.initial
    assert all(set(Upload.from_bytes(data)) == {"model", "weight", "means", "counts"} for data in overheard.values())
    assert all(not Upload.from_bytes(data).model for data in overheard.values())
    assert result.server.model.part("head") != initial.part("head")
    assert result.server.model.part("backbone") == initial.part("backbone")


# pFedSim


def test_the_phases_of_pfedsim(monkeypatch):
    tasks = []
    real = ClientRoom.update

    def update(self, task, test):
        tasks.append(task)
        return real(self, task, test)

    monkeypatch.setattr(ClientRoom, "update", update)
    cohorts = [[0, 2], [1, 3], *toys.COHORTS[:2]]
    result = toys.run(PFedSim(), train__rounds=4, cohorts=cohorts)
    begun = result.server.model  # the warm-up's model, which stays as it is from then on
    assert begun == toys.run(FedAvg(), train__rounds=2, cohorts=cohorts).server.model
    for task in tasks:
        fresh = (task.round, task.client) not in {(3, 1)}  # the only one that has sent a backbone after the warm-up
        if task.round >= 2:
            model = task.received.model
            assert (model == begun) == fresh
            assert set(model) == {name for name in begun if fresh or name.startswith("backbone.")}
    again = result.private[1].model
    assert set(again) == {name for name in begun if name.startswith("head.")}
    assert again.part("head") != begun.part("head")
    together = {pair for cohort in cohorts[2:] for pair in combinations(cohort, 2)}
    pairs = [tuple(pair) for pair in result.server.pairs.tolist()]
    assert len(pairs) == len(together)  # not a number for every two clients that there are
    assert set(pairs) == together
    assert bool((result.server.similarity > 0).all())


def test_pfedsim_is_measured_in_every_round():
    result = toys.run(PFedSim(), train__rounds=4, cohorts=[*toys.COHORTS, [0, 1]])
    assert [row["round"] for row in result.rows] == [-1, 0, 1, 2, 3]
    personal = toys.metrics(result, "personal", "post_agg")
    assert all(personal)
    shared = toys.metrics(result, "global", "post_agg")
    assert [bool(rows) for rows in shared] == [True, True, True, False, False]
    assert [rows[0]["correct"] for rows in personal[:3]] == [rows[0]["correct"] for rows in shared[:3]]


@pytest.mark.parametrize(
    ("warmup", "rounds", "expected"), [(0.5, 4, 2), (0.5, 3, 1), (0.0, 3, 0), (1.0, 3, 2), (0.5, 1, 0)]
)
def test_the_length_of_the_warm_up_of_pfedsim(warmup, rounds, expected):
    stage = toys.setting(PFedSim(), train__rounds=rounds)
    assert sum(PFedSim(warmup=warmup).warms_up(stage.server(round)) for round in range(rounds)) == expected


# any network


@pytest.mark.parametrize("buffers", ["average", "private"])
@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
def test_with_batch_normalisation(method, buffers):
    values = {"model__name": "resnet8", "model__width": 2, "train__rounds": 2, "train__epochs": 1, "train__batch": 32}
    result = toys.run(method, cohorts=[[1, 5], [1, 3]], run__buffers=buffers, **values)
    assert len(result.rows[-1]["metrics"]) > 0
    initial = toys.setting(method, **values).network.initial
    shared = type(method).shared.holds(frozenset({"backbone"}))
    for name in initial:
        if name.startswith("backbone.") and name.endswith("running_var"):
            moved = not torch.equal(result.server.model.get(name, initial[name]), initial[name])
            assert moved == (shared and buffers == "average")


@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
def test_gradients_of_every_objective_can_be_noted(method):
    result = toys.run(method, train__rounds=2, cohorts=[[1, 5], [1, 3]], run__gradients=True)
    assert all(value > 0 for value in result.rows[-1]["notes"]["squared_gradient"].values())


def of_two_layers():
    backbone = nn.Sequential(nn.Flatten(), nn.Linear(64, 8))
    return SplitModel(backbone, nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)))


@pytest.mark.parametrize(
    ("method", "said"),
    [
        (PFedSim(), "pFedSim compares heads of one linear layer, not of a Sequential"),
        (FedCP(), "the policy of FedCP needs one linear layer as head, not a Sequential"),
    ],
)
def test_heads_that_a_method_cannot_read_are_refused(method, said):
    with pytest.raises(InputError) as error:
        toys.run(method, model=of_two_layers)
    assert str(error.value) == said


@pytest.mark.parametrize("method", [FedProto(), FedPAC(), FedGH(), QUICK], ids=lambda m: type(m).__name__)
def test_other_methods_take_any_head(method):
    assert toys.run(method, model=of_two_layers, train__rounds=2, cohorts=[[1, 5], [1, 3]]).rows[-1]["metrics"]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: FedProto(proto_weight=-1.0), "algorithm.proto_weight = -1.0: must be at least 0"),
        (lambda: FedPAC(proto_weight=-1.0), "algorithm.proto_weight = -1.0: must be at least 0"),
        (lambda: FedPAC(head_epochs=-1), "algorithm.head_epochs = -1: must be at least 0"),
        (lambda: FedPAC(head_lr=0.0), "algorithm.head_lr = 0.0: must be above 0"),
        (lambda: FedGH(server_lr=0.0), "algorithm.server_lr = 0.0: must be above 0"),
        (lambda: FedGH(server_epochs=0), "algorithm.server_epochs = 0: must be at least 1"),
        (lambda: PFedSim(warmup=1.1), "algorithm.warmup = 1.1: must be in [0, 1]"),
        (lambda: FedRoD(gamma=0.0), "algorithm.gamma = 0.0: must be above 0"),
        (lambda: Moon(contrast_weight=-0.1), "algorithm.contrast_weight = -0.1: must be at least 0"),
        (lambda: Moon(temperature=0.0), "algorithm.temperature = 0.0: must be above 0"),
        (lambda: Moon(projection=0), "algorithm.projection = 0: must be at least 1"),
        (lambda: FedALA(weight_lr=0.0), "algorithm.weight_lr = 0.0: must be above 0"),
        (lambda: FedALA(share=0.0), "algorithm.share = 0.0: must be above 0"),
        (lambda: FedALA(share=1.1), "algorithm.share = 1.1: must be in [0, 1]"),
        (lambda: FedALA(most_epochs=0), "algorithm.most_epochs = 0: must be at least 1"),
        (lambda: FedCP(mmd_weight=-1.0), "algorithm.mmd_weight = -1.0: must be at least 0"),
    ],
)
def test_wrong_values_are_refused(make, said):
    with pytest.raises(InputError) as error:
        make()
    assert str(error.value) == said
