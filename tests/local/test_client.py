from dataclasses import replace

import methods
import pytest
import toys

from manyheads.algorithms import registry
from manyheads.algorithms.fedper import FedPer
from manyheads.algorithms.pfedkdh import PFedKDH
from manyheads.contract import Part, PrivateState, Upload
from manyheads.local.client import ClientRoom, Task


def first_task(stage, client):
    ctx = stage.server(0)
    server = stage.algorithm.init_server(ctx)
    return Task(client, 0, stage.algorithm.broadcast(server, client, ctx), None)


def test_a_round_splits_the_model():
    stage = toys.setting(FedPer())
    task = first_task(stage, 0)
    reply = ClientRoom(stage).update(task, test=True)
    upload = Upload.from_bytes(reply.upload)
    ctx = stage.client(0, 0)
    whole = ctx.fit(ctx.initial, FedPer().loss, stage.parties.train(0))
    assert upload.model == ctx.take(whole, Part.BACKBONE)
    assert upload.weight == 40.0
    assert reply.private.model == ctx.take(whole, Part.HEAD)
    assert set(reply.correct) == {("", "post_local")}
    assert set(reply.loss) == {"ce"}
    assert reply.error == ""


def test_a_round_may_go_untested():
    stage = toys.setting(FedPer())
    tested, untested = (ClientRoom(stage).update(first_task(stage, 3), test=test) for test in (True, False))
    assert untested.correct == {}
    assert replace(untested, correct=tested.correct) == tested


def test_a_test_changes_nothing():
    stage = toys.setting(PFedKDH())
    task = first_task(stage, 2)
    room = ClientRoom(stage)
    private = PrivateState(model=stage.client(0, 2).take(stage.network.initial, Part.HEAD))
    task = replace(task, private=private)
    before = task.received.to_bytes(), private.to_bytes(), stage.network.initial.clone()
    first = room.evaluate(task, adapt=True)
    assert (task.received.to_bytes(), private.to_bytes(), stage.network.initial) == before
    assert set(first) == {("", "post_agg"), ("prior", "post_agg"), ("", "post_adapt")}
    assert room.evaluate(task, adapt=True) == first
    assert set(room.evaluate(task, adapt=False)) == {("", "post_agg"), ("prior", "post_agg")}


@pytest.mark.parametrize("name", registry.names())
def test_a_round_changes_nothing_that_it_was_given(name):
    method = toys.method(name).stages(3)[0].algorithm
    stage = toys.setting(method, model__name="resnet8", model__width=2, train__epochs=1)
    algorithm, room, initial = stage.algorithm, ClientRoom(stage), stage.network.initial.clone()
    server, private = algorithm.init_server(stage.server(0)), None
    assert stage.network.initial == initial
    for round in (0, 1):
        received = algorithm.broadcast(server, 3, stage.server(round))
        given = [record for record in (received, private, server) if record is not None]
        before = [record.to_bytes() for record in given]
        reply = room.update(Task(3, round, received, private), test=True)
        room.evaluate(Task(3, round, received, private), adapt=True)
        assert [record.to_bytes() for record in given] == before
        uploads = {3: Upload.from_bytes(reply.upload)}
        kept = reply.private.to_bytes()
        after = algorithm.aggregate(server, uploads, stage.server(round))
        assert server.to_bytes() == before[-1]
        assert (after == server) == (not uploads[3].tensors())
        assert (uploads[3].to_bytes(), reply.private.to_bytes()) == (reply.upload, kept)
        server, private = after, reply.private
        assert stage.network.initial == initial


def test_what_goes_wrong_in_training_is_a_reply():
    stage = toys.setting(FedPer(), train__lr=1e30)
    reply = ClientRoom(stage).update(first_task(stage, 0), test=True)
    assert "round 0, client 0: loss term 'ce'" in reply.error
    assert reply.upload == b""


@pytest.mark.parametrize("variant", ["head", "zero"])
def test_variants_are_measured_apart(variant):
    stage = toys.setting(methods.TwoAnswers())
    reply = ClientRoom(stage).update(first_task(stage, 0), test=True)
    expected = int((stage.parties.test.y[stage.parties.test_rows(0)] == 0).sum())
    assert set(reply.correct) == {("head", "post_local"), ("zero", "post_local")}
    assert reply.correct["zero", "post_local"] == expected
