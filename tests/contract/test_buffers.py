"""Networks with BatchNorm: what happens to statistics and counters at the server, on the wire and at the clients."""

import methods
import torch
import toys

from manyheads.algorithms.fedavg import FedAvg
from manyheads.algorithms.fedper import FedPer
from manyheads.contract import Part, Upload
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
    average = toys.run(FedPer(), **RESNET)
    assert result.server.model["backbone.conv1.weight"].shape == average.server.model["backbone.conv1.weight"].shape
    assert result.server != average.server


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
