"""Networks with BatchNorm: what happens to statistics and counters at the server, on the wire and at the clients."""

from dataclasses import dataclass, field

import methods
import torch
import toys

from manyheads.algorithms.fedavg import FedAvg
from manyheads.algorithms.fedper import FedPer
from manyheads.contract import Part, Tree, Upload
from manyheads.contract.records import PrivateState

RESNET = {"model__name": "resnet8", "model__width": 2}


def uploads(heard):
    return {key: Upload.from_bytes(data) for key, data in heard.items()}


def buffers_of(tree):
    return {name for name in tree if name.rpartition(".")[2] in ("running_mean", "running_var", "num_batches_tracked")}


def test_averaged_buffers(overheard):
    result = toys.run(FedPer(), cohorts=[[0, 1]], train__rounds=1, **RESNET)
    sent = uploads(overheard)
    zero, one = sent[0, 0], sent[0, 1]
    assert buffers_of(zero.model)
    assert set(zero.model) == {name for name in result.server.model if name.startswith("backbone.")}
    for name, value in result.server.model.items():
        if name.startswith("head."):
            continue
        a, b = zero.model[name], one.model[name]
        if name.endswith("num_batches_tracked"):
            # 40 images make five steps an epoch, three images make one
            assert (a.item(), b.item(), value.item()) == (10, 2, 10)
        else:
            assert torch.equal(value, ((40 * a.double() + 3 * b.double()) / 43).float())
    assert all(not buffers_of(state.model) for state in result.private.values())


def test_private_buffers(overheard):
    result = toys.run(FedPer(), run__buffers="private", **RESNET)
    initial = toys.setting(**RESNET).network.initial
    names = buffers_of(initial)
    assert all(not buffers_of(upload.model) for upload in uploads(overheard).values())
    assert all(buffers_of(state.model) == names for state in result.private.values())
    for name in names:
        assert torch.equal(result.server.model[name], initial[name])
    counted = "backbone.bn1.num_batches_tracked"
    assert {c: state.model[counted].item() for c, state in result.private.items()} == {
        0: 20,
        1: 4,
        2: 6,
        3: 8,
        4: 2,
        5: 4,
    }


def test_reset_buffers(overheard):
    result = toys.run(FedPer(), run__buffers="reset", **RESNET)
    initial = toys.setting(**RESNET).network.initial
    assert all(not buffers_of(upload.model) for upload in uploads(overheard).values())
    assert all(not buffers_of(state.model) for state in result.private.values())
    for name in buffers_of(initial):
        assert torch.equal(result.server.model[name], initial[name])


@dataclass(frozen=True)
class Counting(FedPer):
    """Writes down from which buffers a client starts to train."""

    starts: dict = field(default_factory=dict)

    def train(self, model, received, private, data, ctx):
        self.starts[ctx.round, ctx.party] = Tree({name: model[name] for name in buffers_of(model)})
        return super().train(model, received, private, data, ctx)


def test_where_clients_start_under_each_policy():
    runs, starts = {}, {}
    for policy in ("average", "private", "reset"):
        method = Counting()
        runs[policy] = toys.run(method, run__buffers=policy, cohorts=[[0, 1]] * 3, **RESNET)
        starts[policy] = method.starts
    counts = {
        policy: [start["backbone.bn1.num_batches_tracked"].item() for start in of.values()]
        for policy, of in starts.items()
    }
    # client 0 makes 10 steps a round, client 1 makes 2; the average takes the larger counter
    assert counts == {"average": [0, 0, 10, 10, 20, 20], "private": [0, 0, 10, 2, 20, 4], "reset": [0] * 6}
    mean = "backbone.bn1.running_mean"
    assert torch.equal(starts["average"][1, 0][mean], starts["average"][1, 1][mean])
    assert not torch.equal(starts["private"][1, 0][mean], starts["private"][1, 1][mean])
    initial = toys.setting(**RESNET).network.initial
    assert all(start == Tree({n: initial[n] for n in start}) for start in starts["reset"].values())
    # in training BatchNorm goes by the batch, so that the policies train the same weights
    weights = [
        {n: t.tolist() for n, t in run.server.model.items() if n not in buffers_of(initial)} for run in runs.values()
    ]
    assert weights[0] == weights[1] == weights[2]


def test_a_single_image_at_the_end_does_not_spoil_batchnorm():
    # clients 2, 3 and 4 end their epochs in one image; alone it would have no variance
    for client in (2, 3, 4):
        result = toys.run(FedAvg(), cohorts=[[client]], train__rounds=1, **RESNET)
        assert all(bool(torch.isfinite(t).all()) for t in result.server.model.values())


def test_training_the_head_alone_sends_the_backbone_back(overheard):
    toys.run(methods.HeadFirst(), **RESNET)
    initial = toys.setting(**RESNET).network.initial
    for upload in uploads(overheard).values():
        assert upload.model.part("backbone") == initial.part("backbone")


def test_normalisation_layers_may_be_private(overheard):
    class Local(FedAvg):
        shared = Part.ALL - Part.NORM

    result = toys.run(Local(), **RESNET)
    assert isinstance(result.private[0], PrivateState)
    norms = {name for name, tags in toys.setting(**RESNET).network.tags.items() if "norm" in tags}
    assert set(result.private[0].model) == norms
    assert all(not norms & set(upload.model) for upload in uploads(overheard).values())
    assert result.private[0].model != result.private[1].model
