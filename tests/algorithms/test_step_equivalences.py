"""Methods with a step or a server rule of their own: what they must equal, and mistakes that others made with them."""

from dataclasses import dataclass, replace
from functools import cache

import pytest
import torch
import toys
from torch import nn

from manyheads.algorithms.apfl import APFL
from manyheads.algorithms.fedavg import FedAvg
from manyheads.algorithms.feddyn import FedDyn
from manyheads.algorithms.fednova import FedNova
from manyheads.algorithms.per_fedavg import PerFedAvg
from manyheads.algorithms.pfedme import PFedMe
from manyheads.algorithms.scaffold import Scaffold
from manyheads.contract import Part, Upload
from manyheads.contract.tree import same_bits
from manyheads.errors import InputError
from manyheads.models import SplitModel

EVERYONE = tuple([tuple(range(6))] * 3)
both = pytest.mark.parametrize("cohorts", [EVERYONE, toys.COHORTS], ids=["all", "half"])
BATCHNORM = {"model__name": "resnet8", "model__width": 2, "train__rounds": 2}
FEW = ((1, 2), (2, 4))  # for networks with BatchNorm, which take longer
METHODS = [  # the server rules of the first four go beyond the clients' mean
    PFedMe(beta=1.5),
    Scaffold(server_lr=1.5),
    FedDyn(),
    FedNova(),
    APFL(),
    PerFedAvg(),
    PerFedAvg(variant="hessian_free"),
]
every = pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)


@cache
def ran(method, cohorts, **values):
    """The result of a run that is tested at its end; runs are shared by the tests of this file."""
    return toys.run(method, cohorts=cohorts, run__eval_every=3, **values)


class Uniform(FedAvg):
    """FedAvg whose clients count alike."""

    def aggregate(self, server, uploads, ctx):
        return server.replace(model=ctx.average(uploads, weight=dict.fromkeys(uploads, 1.0)).model)


@dataclass(frozen=True)
class StillScaffold(Scaffold):
    """SCAFFOLD whose control variates stay 0."""

    def local_update(self, received, private, data, ctx):
        update = super().local_update(received, private, data, ctx)
        upload = update.upload.replace(control=update.upload.control * 0.0)
        return replace(update, private=private, upload=upload)


@both
@pytest.mark.parametrize("adaptive", [True, False])
@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_the_shared_model_of_apfl_is_fedavg_s(alpha, adaptive, cohorts):
    assert ran(APFL(alpha=alpha, adaptive=adaptive), cohorts).server == ran(FedAvg(), cohorts).server


@pytest.mark.parametrize("alpha", [0.0, 0.5])
def test_the_shared_model_of_apfl_is_fedavg_s_with_batchnorm(alpha):
    assert ran(APFL(alpha=alpha), FEW, **BATCHNORM).server == ran(FedAvg(), FEW, **BATCHNORM).server


@both
def test_scaffold_without_control_variates_is_fedavg_of_equal_clients(cohorts):
    assert ran(StillScaffold(), cohorts).server.model == ran(Uniform(), cohorts).server.model
    assert ran(Scaffold(), cohorts).server.model != ran(Uniform(), cohorts).server.model


@both
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_fednova_of_equal_steps_is_fedavg(momentum, cohorts):
    parts = toys.partition((16, 15, 14, 13, 12, 11))  # two steps an epoch for all of them
    nova, plain = (
        toys.run(method, cohorts=cohorts, partition=parts, train__momentum=momentum) for method in (FedNova(), FedAvg())
    )
    assert apart(nova, plain) < 1e-6


@both
def test_fednova_of_unequal_steps_is_not(cohorts):
    assert apart(ran(FedNova(), cohorts), ran(FedAvg(), cohorts)) > 1e-3


def apart(one, other):
    """The largest difference between the global models of two runs."""
    return max(float((tensor - other.server.model[name]).abs().max()) for name, tensor in one.server.model.items())


def test_theta_of_pfedme_is_a_model_of_its_own():
    method = PFedMe(personal_lr=0.1)
    stage, result = toys.setting(method), ran(method, toys.COHORTS)
    for client, private in result.private.items():
        ctx, data = stage.client(3, client), stage.parties.train(client)
        received = method.broadcast(result.server, client, stage.server(3))
        assert method.personal(received, private, data, ctx).tree == private.theta
        update = method.local_update(received, private, data, ctx)
        theta, w, start = update.private.theta, update.upload.model, received.model
        assert update.trained.tree == theta
        assert all(not torch.equal(theta[name], w[name]) for name in w)
        assert all(not torch.equal(theta[name], start[name]) for name in w)
        assert all(not torch.equal(theta[name], private.theta[name]) for name in w)
    # by the end all have taken part: what is tested then is what was tested after their last training
    [agg], [local] = (toys.metrics(result, "personal", moment)[-1] for moment in ("post_agg", "post_local"))
    assert agg == local


@both
@pytest.mark.parametrize(
    ("method", "mine", "theirs"), [(Scaffold(), "control", "control"), (FedDyn(), "h", "g")], ids=["scaffold", "feddyn"]
)
def test_the_server_s_corrections_are_the_mean_of_all_clients(method, mine, theirs, cohorts):
    result = ran(method, cohorts)
    found, kept = result.server.get(mine), [private.get(theirs) for private in result.private.values()]
    for name, tensor in found.items():
        mean = sum(tree[name].double() for tree in kept) / len(toys.SIZES)
        torch.testing.assert_close(tensor.double(), mean, rtol=1e-4, atol=1e-6)
    assert max(float(tensor.abs().max()) for tensor in found.values()) > 1e-2


@every
def test_a_client_smaller_than_a_batch_trains(method, overheard):
    result = toys.run(method, cohorts=[[1]], train__rounds=1)
    [upload] = map(Upload.from_bytes, overheard.values())
    initial = toys.setting(method).network.initial
    assert all(not torch.equal(upload.model[name], tensor) for name, tensor in initial.items())
    assert result.server.model != initial


@every
def test_late_joiners_start_from_the_initial_model(method):
    stage = toys.setting(method)
    initial = stage.network.initial
    ctx = stage.server(2)
    server = method.init_server(ctx)
    server = server.replace(**{field: server.get(field) + initial for field in server})  # by then all has moved
    received = method.broadcast(server, 5, ctx)
    private = method.init_private(received, stage.client(2, 5))
    for field in private:
        if field in ("theta", "own"):
            assert private.get(field) == initial
        elif field in ("g", "control"):
            assert private.get(field) == initial * 0.0
        else:
            assert field == "alpha" or not private.get(field)
    assert len(list(private)) >= (2 if isinstance(method, PFedMe | Scaffold | FedDyn | APFL) else 1)


@every
def test_statistics_follow_the_mean_by_size(method, overheard):
    result = toys.run(method, cohorts=FEW, **BATCHNORM)
    uploads = {client: Upload.from_bytes(overheard[1, client]).model for client in FEW[1]}
    stage = toys.setting(method, **BATCHNORM)
    statistics = stage.server(0).take(stage.network.initial, Part.BUFFER)
    assert statistics
    for name, initial in statistics.items():
        value, sent = result.server.model[name], [tree[name] for tree in uploads.values()]
        if value.is_floating_point():
            total = sum(tree[name].double() * toys.SIZES[client] for client, tree in uploads.items())
            assert torch.equal(value, (total / sum(toys.SIZES[client] for client in uploads)).float())
            assert not any(torch.equal(value, tensor) for tensor in (*sent, initial))
        else:
            assert value == max(sent)


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_statistics_of_apfl_s_own_model(alpha):
    method = APFL(alpha=alpha, adaptive=False)
    stage, result = toys.setting(method, **BATCHNORM), ran(method, FEW, **BATCHNORM)
    # all steps of the rounds that a client took part in, each once
    counted = {client: kept.own["backbone.bn1.num_batches_tracked"].item() for client, kept in result.private.items()}
    assert counted == {1: 2, 2: 12, 4: 2}
    # for the test they are mixed
    received, kept = method.broadcast(result.server, 2, stage.server(2)), result.private[2]
    found = method.personal(received, kept, stage.parties.train(2), stage.client(2, 2)).tree
    for name, tensor in found.items():
        if tensor.is_floating_point():
            torch.testing.assert_close(tensor, (1 - alpha) * received.model[name] + alpha * kept.own[name])
            assert alpha or same_bits(tensor, received.model[name])
            assert alpha < 1 or same_bits(tensor, kept.own[name])
            assert not torch.equal(kept.own[name], received.model[name])


def test_theta_of_pfedme_has_the_statistics_of_its_steps(overheard):
    result = toys.run(PFedMe(inner_steps=3), cohorts=FEW[:1], **BATCHNORM | {"train__rounds": 1})
    counter = "backbone.bn1.num_batches_tracked"
    assert {client: kept.theta[counter].item() for client, kept in result.private.items()} == {1: 6, 2: 18}
    server = toys.setting(PFedMe(), **BATCHNORM).server(0)
    for (_, client), data in overheard.items():  # which w takes over
        sent, kept = (
            server.take(tree, Part.BUFFER) for tree in (Upload.from_bytes(data).model, result.private[client].theta)
        )
        assert kept
        assert sent == kept


@every
def test_with_private_statistics_there_is_no_global_model(method):
    result = toys.run(method, cohorts=FEW[:1], run__buffers="private", **BATCHNORM | {"train__rounds": 1})
    stage = toys.setting(method, buffers="private", **BATCHNORM)
    for name, tensor in stage.server(0).take(stage.network.initial, Part.BUFFER).items():
        assert same_bits(result.server.model[name], tensor)
    assert {metric["model"] for metric in result.rows[-1]["metrics"]} == {"personal"}


@every
def test_what_the_network_s_author_froze_stays(method):
    def model():
        layer, head = nn.Linear(64, 4), nn.Linear(4, 4)
        for linear in (layer, head):
            nn.init.constant_(linear.weight, 0.1)
        layer.requires_grad_(False)
        return SplitModel(nn.Sequential(nn.Flatten(), layer, nn.ReLU()), head)

    result = toys.run(method, model=model, train__rounds=2, cohorts=[[0, 1]] * 2)
    for record in (result.server, result.private[0]):
        for tree in map(record.get, {"model", "theta", "own"} & set(record)):
            if tree:
                assert torch.equal(tree["backbone.1.weight"], torch.full((4, 64), 0.1))
                assert not (tree["head.weight"] == 0.1).any()


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: PFedMe(prox_weight=0.0), "algorithm.prox_weight = 0.0: must be above 0"),
        (lambda: PFedMe(inner_steps=0), "algorithm.inner_steps = 0: must be at least 1"),
        (lambda: PFedMe(personal_lr=-0.1), "algorithm.personal_lr = -0.1: must be above 0"),
        (lambda: PFedMe(lr=0.0), "algorithm.lr = 0.0: must be above 0"),
        (lambda: PFedMe(beta=0.0), "algorithm.beta = 0.0: must be above 0"),
        (lambda: PFedMe(local_rounds=0), "algorithm.local_rounds = 0: must be at least 1"),
        (lambda: PFedMe(averaged=0.0), "algorithm.averaged = 0.0: must be above 0"),
        (lambda: PFedMe(averaged=1.2), "algorithm.averaged = 1.2: must be in [0, 1]"),
        (lambda: Scaffold(server_lr=0.0), "algorithm.server_lr = 0.0: must be above 0"),
        (lambda: FedDyn(alpha=0.0), "algorithm.alpha = 0.0: must be above 0"),
        (lambda: FedDyn(alpha=float("nan")), "algorithm.alpha = nan: must be above 0"),
        (lambda: APFL(alpha=1.5), "algorithm.alpha = 1.5: must be in [0, 1]"),
        (lambda: PerFedAvg(variant="first"), "algorithm.variant: unknown variant 'first'; did you mean 'first_order'?"),
        (lambda: PerFedAvg(inner_lr=0.0), "algorithm.inner_lr = 0.0: must be above 0"),
        (lambda: PerFedAvg(outer_lr=-1.0), "algorithm.outer_lr = -1.0: must be above 0"),
        (lambda: PerFedAvg(delta=0.0), "algorithm.delta = 0.0: must be above 0"),
        (lambda: PerFedAvg(adapt_steps=-1), "algorithm.adapt_steps = -1: must be at least 0"),
    ],
)
def test_wrong_values_are_refused(make, said):
    with pytest.raises(InputError) as error:
        make()
    assert str(error.value) == said
