"""One round at the server: what is taken from clients, what is refused, and which round a client is told of."""

import math
from dataclasses import dataclass, field, replace

import pytest
import torch
import toys

from manyheads.algorithms.fedavg import FedAvg
from manyheads.algorithms.fedper import FedPer
from manyheads.contract import Part, PrivateState, Upload
from manyheads.errors import RunError

MLP = {"model__name": "mlp", "model__hidden": [6]}


# what is not a number


@dataclass(frozen=True)
class SpoiledHead(FedPer):
    """What client 1 keeps is spoiled in round 1; its upload is sound."""

    value: float = math.nan

    def local_update(self, received, private, data, ctx):
        update = super().local_update(received, private, data, ctx)
        if (ctx.party, ctx.round) != (1, 1):
            return update
        return replace(update, private=private.replace(model=update.private.model.map(lambda t: t * self.value)))


def test_a_private_state_that_is_no_number_stops_the_run():
    with pytest.raises(RunError, match=r"^round 1, client 1: the private state's 'model/head\.bias' is not a number$"):
        toys.run(SpoiledHead(), **MLP)


def test_a_client_whose_private_state_is_no_number_keeps_what_it_had():
    cohorts = [[0, 1, 2], [1, 3, 4], [0, 1, 5]]
    result = toys.run(SpoiledHead(), cohorts=cohorts, run__non_finite="drop", **MLP)
    without = toys.run(FedPer(), cohorts=[[0, 1, 2], [3, 4], [0, 1, 5]], **MLP)
    assert list(result.rows[2].pop("dropped")) == ["1"]
    assert all("dropped" not in row for row in result.rows)
    assert result.private == without.private
    assert result.server == without.server
    assert [row["metrics"] for row in result.rows] == [row["metrics"] for row in without.rows]
    assert [row["loss"] for row in result.rows] == [row["loss"] for row in without.rows]


@dataclass(frozen=True)
class SpoiledServer(FedAvg):
    """The server's state is spoiled at the start, or in one round."""

    at: int | None = None
    value: float = math.nan

    def init_server(self, ctx, previous=None):
        state = super().init_server(ctx, previous)
        return state.replace(best=self.value) if self.at is None else state

    def aggregate(self, server, uploads, ctx):
        state = super().aggregate(server, uploads, ctx)
        return state.replace(model=state.model.map(lambda t: t * self.value)) if ctx.round == self.at else state


@pytest.mark.parametrize("mode", ["stop", "drop"])
def test_a_server_whose_state_is_no_number_stops_the_run(mode):
    with pytest.raises(RunError, match=r"^before training, the server: 'best' is not a number$"):
        toys.run(SpoiledServer(), run__non_finite=mode, **MLP)
    with pytest.raises(RunError, match=r"^round 1, the server: 'model/backbone\.[a-z0-9.]+' is not a number$"):
        toys.run(SpoiledServer(at=1), run__non_finite=mode, **MLP)


def test_a_server_may_keep_an_infinity():
    assert toys.run(SpoiledServer(value=math.inf), **MLP).server.best == math.inf


# weights


@dataclass(frozen=True)
class Equals(FedAvg):
    """Every client counts the same: uploads have no weight."""

    def local_update(self, received, private, data, ctx):
        update = super().local_update(received, private, data, ctx)
        return replace(update, upload=Upload(model=update.upload.model))

    def aggregate(self, server, uploads, ctx):
        assert all("weight" not in upload for upload in uploads.values())
        return server.replace(model=ctx.average(uploads, weight=dict.fromkeys(uploads, 1.0)).model)


def test_uploads_need_no_weight(overheard):
    result = toys.run(Equals(), cohorts=[[0, 1]], train__rounds=1, **MLP)
    one, other = (Upload.from_bytes(overheard[0, client]).model for client in (0, 1))
    for name, tensor in result.server.model.items():
        assert torch.equal(tensor, ((one[name].double() + other[name].double()) / 2).float())
    # the losses of the row are those of the clients' images all the same: 40 and 3 of them
    by_size = toys.run(FedAvg(), cohorts=[[0, 1]], train__rounds=1, **MLP)
    assert result.rows[1]["loss"] == by_size.rows[1]["loss"]
    (zero,), (single,) = (toys.run(FedAvg(), cohorts=[[c]], train__rounds=1, **MLP).rows[1:] for c in (0, 1))
    assert result.rows[1]["loss"]["ce"] == pytest.approx((40 * zero["loss"]["ce"] + 3 * single["loss"]["ce"]) / 43)


@dataclass(frozen=True)
class Negative(FedAvg):
    """Client 1 wants to be subtracted."""

    def local_update(self, received, private, data, ctx):
        update = super().local_update(received, private, data, ctx)
        return replace(update, upload=update.upload.replace(weight=-1.0)) if ctx.party == 1 else update


def test_a_negative_weight_is_refused():
    with pytest.raises(RunError, match=r"^round 0, client 1: the upload's 'weight' is -1\.0, below 0$"):
        toys.run(Negative(), **MLP)
    result = toys.run(Negative(), run__non_finite="drop", **MLP)
    assert [list(row.get("dropped", ())) for row in result.rows] == [[], ["1"], ["1"], []]
    assert result.server == toys.run(FedAvg(), cohorts=[[0, 2], [3, 4], [0, 3, 5]], **MLP).server


# moments


@dataclass(frozen=True)
class Dated(FedPer):
    """Writes down in which order, and for which round, it is asked for what."""

    asked: list = field(default_factory=list)

    def broadcast(self, server, client, ctx):
        return super().broadcast(server, client, ctx).replace(sent=ctx.round)

    def local_update(self, received, private, data, ctx):
        self.asked.append(("train", received.sent, ctx.round))
        return super().local_update(received, private, data, ctx)

    def personal(self, received, private, data, ctx):
        self.asked.append(("personal", received.sent, ctx.round))
        return super().personal(received, private, data, ctx)

    def adapt(self, model, data, ctx):
        self.asked.append(("adapt", ctx.round, ctx.round))
        return ctx.fit(model, self.loss, data, trains=Part.HEAD, steps=1)

    def adapts(self):
        return Part.HEAD

    def global_model(self, server, ctx):
        self.asked.append(("global", ctx.round, ctx.round))


def test_a_test_after_a_round_belongs_to_the_next_one():
    method = Dated()
    toys.run(method, train__rounds=2, cohorts=[[0], [1]], **MLP)
    asked = [(what, round) for what, sent, round in method.asked if sent == round]
    assert len(asked) == len(method.asked)  # the server says the same round as the client
    assert list(dict.fromkeys(asked)) == [
        *(("global", 0), ("personal", 0), ("adapt", 0)),  # before training
        *(("train", 0), ("global", 1), ("personal", 1), ("adapt", 1)),
        *(("train", 1), ("global", 2), ("personal", 2), ("adapt", 2)),
    ]


@dataclass(frozen=True)
class WholeAdapts(FedPer):
    """Adapts, and does not say what."""

    def adapt(self, model, data, ctx):
        return ctx.fit(model, self.loss, data, steps=1)


def test_a_whole_model_is_adapted_every_ten_rounds_and_a_head_every_round():
    rounds = {"train__rounds": 12, "cohorts": [[1]] * 12, **MLP}
    for method, expected in ((WholeAdapts(), [-1, 9, 11]), (Dated(), [*range(-1, 12)]), (FedPer(), [])):
        result = toys.run(method, **rounds)
        adapted = toys.metrics(result, "personal", "post_adapt")
        assert [row["round"] for row, found in zip(result.rows, adapted, strict=True) if found] == expected
    often = toys.metrics(toys.run(WholeAdapts(), run__adapt_every=4, **rounds), "personal", "post_adapt")
    assert [number for number, found in enumerate(often, -1) if found] == [-1, 3, 7, 11]


# what a client keeps


@dataclass(frozen=True)
class Empty(FedAvg):
    """Clients keep an empty record, and write down when they are asked for their first one."""

    asked: list = field(default_factory=list)

    def init_private(self, received, ctx):
        self.asked.append((ctx.party, ctx.round))
        return PrivateState()

    def local_update(self, received, private, data, ctx):
        return replace(super().local_update(received, private, data, ctx), private=PrivateState())


def test_a_client_that_keeps_an_empty_record_is_no_newcomer():
    method = Empty()
    result = toys.run(method, cohorts=[[0]] * 3, **MLP)
    assert [round for client, round in method.asked if client == 0] == [0, 0]  # tested before training, then trained
    assert result.private == {0: PrivateState()}
