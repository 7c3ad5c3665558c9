"""What crosses the wire, and what each room gets to see."""

import re
from dataclasses import dataclass, replace

import methods
import numpy as np
import pytest
import torch
import toys

from manyheads.algorithms.fedper import FedPer
from manyheads.algorithms.pfedkdh import PFedKDH
from manyheads.contract import Broadcast, ClientContext, PrivateState, ServerContext, Upload
from manyheads.contract.wire import WireError
from manyheads.data.dataset import Dataset, Split, dataset_from_arrays
from manyheads.data.partition import Partition
from manyheads.experiment import Experiment

BACKBONE = {f"backbone.{layer}.{leaf}" for layer in ("conv1", "conv2", "fc") for leaf in ("weight", "bias")}


@pytest.mark.parametrize("method", [FedPer(), PFedKDH()])
@pytest.mark.parametrize(("shape", "size"), [((28, 28, 1), 2_307_584), ((32, 32, 3), 3_493_632)])
def test_uploads_of_the_papers_cnn(method, shape, size, overheard):
    rng = np.random.default_rng(0)
    data = dataset_from_arrays(
        rng.integers(0, 256, (12, *shape), np.uint8),
        np.arange(12) % 10,
        rng.integers(0, 256, (10, *shape), np.uint8),
        np.arange(10),
    )

    def rows(*some):
        return np.array(some, np.int64)

    parts = Partition((rows(0, 1, 2), rows(3, 4)), (rows(), rows()), (rows(), rows()), rows(10, 11))
    config = toys.config().with_values({"model.name": "cnn", "train.rounds": 1, "train.epochs": 1})
    config = config.with_values({"model.kernel": 5, "model.padding": 0, "model.widths": [32, 64]})
    config = config.with_values({"model.features": 512})
    result = Experiment(config, dataset=data, partition=parts, cohorts=[[0]], algorithm=method).run()
    upload = Upload.from_bytes(overheard[0, 0])
    assert set(upload.model) == BACKBONE
    assert sum(t.numel() * t.element_size() for t in upload.model.values()) == size
    assert 0 < len(overheard[0, 0]) - size < 1024
    assert result.rows[-1]["bytes"]["up"] == {"0": len(overheard[0, 0])}
    # downwards, pFedKDH sends its teacher head besides: 512 * 10 weights and 10 biases
    down = result.rows[-1]["bytes"]["down"]["0"] - size
    assert 0 < down - (4 * 5130 if isinstance(method, PFedKDH) else 0) < 1024


def secret_head(update, ctx):
    return update.upload.replace(secret_head=update.private.model)


def hidden_in_the_model(update, ctx):
    head = update.private.model
    return update.upload.replace(model=update.upload.model | head)


def wider(update, ctx):
    model = update.upload.model
    name = "backbone.fc.bias"
    longer = torch.cat([model[name], update.private.model["head.bias"]])
    return update.upload.replace(model=model | type(model)({name: longer}))


@pytest.mark.parametrize(
    ("more", "named"),
    [
        (secret_head, "'secret_head'"),
        (hidden_in_the_model, r"'head\.bias'"),
        (wider, r"'backbone\.fc\.bias' is \[12\]"),
    ],
)
@pytest.mark.parametrize("engine", ["serial", "threads", "processes"])
def test_a_method_that_sends_more_is_refused(more, named, engine, overheard):
    with pytest.raises(WireError, match=named) as caught:
        toys.run(methods.Sends(more=more), run__engine=engine, run__workers=2, model__dropout=0.0)
    assert re.match(r"Sends, client \d: field ", str(caught.value))  # the first one that came in
    assert overheard == {}


@dataclass(frozen=True)
class BroadcastsAll(FedPer):
    def broadcast(self, server, client, ctx):
        return Broadcast(model=server.model)


def test_a_method_that_broadcasts_more_is_refused():
    with pytest.raises(WireError, match=r"BroadcastsAll broadcasts 'head\.bias'"):
        toys.run(BroadcastsAll(), model__name="mlp")


def test_heads_of_absent_clients_stay():
    first = toys.run(PFedKDH(), cohorts=[[0, 1, 2]], train__rounds=1)
    second = toys.run(PFedKDH(), cohorts=[[0, 1, 2], [1, 3]], train__rounds=2)
    assert sorted(second.private) == [0, 1, 2, 3]
    for client in (0, 2):
        assert second.private[client] == first.private[client]
    assert second.private[1] != first.private[1]


@dataclass(frozen=True)
class Watched(PFedKDH):
    def recalibrated(self, model, ctx):
        after = super().recalibrated(model, ctx)
        assert after.part("backbone") == model.part("backbone")
        assert after.part("head") != model.part("head")
        return after


def test_recalibration_leaves_the_backbone():
    for values in ({}, {"model__name": "resnet8", "model__width": 2}):
        toys.run(Watched(), train__rounds=1, cohorts=[[0, 1]], **values)


def test_warm_up_changes_the_backbone_and_no_private_head():
    plain, warm = (toys.setting(PFedKDH(warmup_epochs=epochs)) for epochs in (0, 1))
    states = [stage.algorithm.init_server(stage.server(0)) for stage in (plain, warm)]
    initial = warm.network.initial
    assert states[0].model.part("backbone") == initial.part("backbone")
    assert states[1].model.part("backbone") != initial.part("backbone")
    for client in range(6):
        received = warm.algorithm.broadcast(states[1], client, warm.server(0))
        private = warm.algorithm.init_private(received, warm.client(2, client))
        assert private.model.part("head") == initial.part("head")
        assert set(private) == {"model"}
        assert set(private.model) == {"head.weight", "head.bias"}


def with_pixels(change):
    """The tiny federation with some pixels replaced; the normalisation stays."""
    data = toys.dataset()
    train, test = data.train.images.copy(), data.test.images.copy()
    change(train, test)
    return Dataset(
        "toy",
        Split(train, data.train.labels),
        Split(test, data.test.labels),
        data.classes,
        data.mean,
        data.std,
    )


def test_the_auxiliary_set_reaches_no_client_and_no_test():
    partition = toys.partition()
    held = {int(row) for rows in partition.train for row in rows}
    assert not held & set(partition.auxiliary.tolist())

    def spoil(train, test):
        train[partition.auxiliary] = 255 - train[partition.auxiliary]

    method = PFedKDH(kd_weight=0.0, prox_weight=0.0)  # nothing that the server learns from D_s enters the clients' loss
    one, other = toys.run(method), toys.run(method, dataset=with_pixels(spoil))
    assert one.private == other.private
    assert one.server.model.part("backbone") == other.server.model.part("backbone")
    assert one.server.model.part("head") != other.server.model.part("head")
    for moment in ("post_agg", "post_local", "post_adapt"):
        assert toys.metrics(one, "personal", moment) == toys.metrics(other, "personal", moment)


def test_test_images_change_no_training_bit(overheard):
    def spoil(train, test):
        test[:] = 255 - test

    one = toys.run(PFedKDH())
    before = dict(overheard)
    other = toys.run(PFedKDH(), dataset=with_pixels(spoil))
    assert one.server == other.server
    assert one.private == other.private
    assert before == overheard
    assert toys.plain(one.rows) != toys.plain(other.rows)


@dataclass(frozen=True)
class Nosy(PFedKDH):
    """Looks at all that it is given, in every step."""

    def init_private(self, received, ctx):
        assert type(ctx) is ClientContext
        return super().init_private(received, ctx)

    def local_update(self, received, private, data, ctx):
        assert type(ctx) is ClientContext
        assert not hasattr(ctx, "auxiliary")
        assert type(received) is Broadcast
        update = super().local_update(received, private, data, ctx)
        object.__setattr__(update.upload, "whisper", update.private)  # is no field, so it must not arrive
        return replace(update, private=update.private.replace(diary=torch.ones(3)))

    def adapt(self, model, data, ctx):
        assert type(ctx) is ClientContext
        return super().adapt(model, data, ctx)

    def aggregate(self, server, uploads, ctx):
        assert type(ctx) is ServerContext
        for upload in uploads.values():
            assert type(upload) is Upload
            assert set(upload) == {"model", "weight"}
            assert "whisper" not in vars(upload)
            assert upload == Upload.from_bytes(upload.to_bytes())
        return super().aggregate(server, uploads, ctx)


@pytest.mark.parametrize("engine", ["serial", "threads"])
def test_each_room_sees_its_own(engine):
    result = toys.run(Nosy(), run__engine=engine, run__workers=2)
    assert "diary" not in result.server
    assert all(type(private) is PrivateState and "diary" in private for private in result.private.values())


def test_uploads_share_no_memory_with_what_a_client_keeps():
    kept, got = [], []

    class Sharing(FedPer):
        def local_update(self, received, private, data, ctx):
            update = super().local_update(received, private, data, ctx)
            kept.extend(t.data_ptr() for t in update.upload.model.values())
            alive.append(update)
            return update

        def aggregate(self, server, uploads, ctx):
            got.extend(t.data_ptr() for upload in uploads.values() for t in upload.model.values())
            return super().aggregate(server, uploads, ctx)

    alive = []
    toys.run(Sharing(), train__rounds=1)
    assert len(kept) == len(got) == 18
    assert not set(kept) & set(got)
