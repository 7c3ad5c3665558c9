"""FedeCouple: its invariants, and the method that it becomes without its parts."""

import pytest
import torch
import toys

from manyheads.algorithms.fedecouple import FedeCouple
from manyheads.algorithms.fedrep import FedRep
from manyheads.contract import Broadcast, Context, Part, Upload
from manyheads.data import augment
from manyheads.errors import InputError
from manyheads.events import Warned

EVERYONE = tuple([tuple(range(6))] * 3)


@pytest.mark.parametrize("order", ["gpc_first", "glf_first"])
def test_each_phase_moves_only_its_part(order, monkeypatch):
    # With momentum and weight decay, which would move a part whose gradient were only set to zero.
    stage = toys.setting(FedeCouple(order=order), train__momentum=0.9, train__weight_decay=0.1)
    ctx, data = stage.client(1, 1), stage.parties.train(1)
    server = stage.algorithm.init_server(stage.server(0))
    received = stage.algorithm.broadcast(server, 1, stage.server(1))
    mine = received.model.part("head").map(lambda t: t + 0.1)
    private = stage.algorithm.init_private(received, ctx).replace(head=mine)
    seen = []
    real = type(ctx).fit

    def fit(self, model, loss, data, **how):
        after = real(self, model, loss, data, **how)
        seen.append((how["phase"], model, after))
        return after

    monkeypatch.setattr(type(ctx), "fit", fit)
    update = stage.algorithm.local_update(received, private, data, ctx)
    names = [phase for phase, _, _ in seen]
    assert names == [phase for phase, _ in stage.algorithm.phases(2)]
    by_phase = {phase: (before, after) for phase, before, after in seen}
    for phase, (before, after) in by_phase.items():
        frozen, trained = ("backbone", "head") if phase == "gpc" else ("head", "backbone")
        assert after.part(frozen) == before.part(frozen)
        assert after.part(trained) != before.part(trained)
    assert by_phase["glf_global"][0].part("head") == received.model.part("head")
    assert by_phase["gpc"][0].part("head") == mine
    tuned = by_phase["gpc"][1].part("head")
    assert by_phase["glf_local"][0].part("head") == tuned == update.private.head
    assert update.upload.model == by_phase["glf_local"][1]
    assert update.trained.tree == update.upload.model


def test_an_upload_holds_model_and_weight_and_nothing_else(overheard):
    toys.run(FedeCouple())
    initial = toys.setting(FedeCouple()).network.initial
    for data in overheard.values():
        upload = Upload.from_bytes(data)
        assert set(upload) == {"model", "weight"}
        assert {name: t.shape for name, t in upload.model.items()} == {name: t.shape for name, t in initial.items()}


def test_anchors_are_class_means_under_the_received_backbone():
    stage = toys.setting(FedeCouple(augment=True))  # dropout and augmentation have no part in them
    ctx, data = stage.client(1, 1), stage.parties.train(1)
    received = Broadcast(model=ctx.initial)
    private = stage.algorithm.init_private(received, ctx)

    def prepared(ctx):
        return stage.algorithm.prepare(ctx.initial, received, private, data, ctx).constants

    assert len(data) == 3
    with torch.no_grad():
        features = ctx.model(ctx.initial).backbone(data.x(torch.arange(3)))
    for label in range(toys.CLASSES):
        mine = features[data.y == label]
        expected = mine.mean(dim=0) if len(mine) else torch.zeros(features.shape[1])
        torch.testing.assert_close(prepared(ctx)["anchors"][label], expected)
    assert len(set(data.y.tolist())) < toys.CLASSES  # a class that the client lacks
    assert "anchors" not in prepared(stage.client(0, 1))


def test_the_loss_terms_of_all_phases_are_logged():
    rows = toys.run(FedeCouple()).rows[1:]
    first = {"gpc/ce", "gpc/kd", "glf_global/ce", "glf_local/ce"}
    assert [set(row["loss"]) for row in rows] == [first, *[first | {"glf_global/center", "glf_local/center"}] * 2]


# what it becomes


BARE = {"center_weight": 0.0, "kd_low": 0.0, "kd_high": 0.0, "global_epochs": 0, "aggregation": "size"}


@pytest.mark.parametrize(("head_epochs", "backbone_epochs"), [(1, 2), (2, 1)])
def test_without_its_parts_it_is_fedrep(head_epochs, backbone_epochs):
    method = FedeCouple(**BARE, augment=False, head_epochs=head_epochs, local_epochs=backbone_epochs)
    fedecouple = toys.run(method, cohorts=EVERYONE)
    fedrep = toys.run(FedRep(head_epochs=head_epochs, backbone_epochs=backbone_epochs), cohorts=EVERYONE)
    assert fedecouple.server.model.part("backbone") == fedrep.server.model.part("backbone")
    assert {k: kept.head for k, kept in fedecouple.private.items()} == {
        k: kept.model.part("head") for k, kept in fedrep.private.items()
    }
    for moment in ("post_agg", "post_local"):
        rows = toys.metrics(fedrep, "personal", moment)
        assert toys.metrics(fedecouple, "personal", moment) == rows
        assert any(rows)


@pytest.mark.parametrize(
    "part",
    [{"center_weight": 1.0}, {"kd_high": 0.5}, {"global_epochs": 1}, {"aggregation": "distance"}, {"augment": True}],
    ids=str,
)
def test_each_part_matters(part):
    # otherwise the test above would prove nothing
    bare = toys.run(FedeCouple(**BARE | {"augment": False}), cohorts=EVERYONE)
    other = toys.run(FedeCouple(**BARE | {"augment": False} | part), cohorts=EVERYONE)
    assert other.server.model.part("backbone") != bare.server.model.part("backbone")


def test_a_late_joiner_starts_from_the_head_that_it_receives(overheard):
    # client 5 first takes part in the last round; with the heads left alone, it keeps what it received
    result = toys.run(FedeCouple(head_epochs=0))
    before = toys.run(FedeCouple(head_epochs=0), train__rounds=2, cohorts=toys.COHORTS[:2])
    assert result.private[5].head == before.server.model.part("head")


def test_a_head_of_its_own_learning_rate():
    a = toys.run(FedeCouple(head_lr=0.2))  # the run's
    assert a.server == toys.run(FedeCouple()).server
    assert a.server != toys.run(FedeCouple(head_lr=0.1)).server


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"center": "sum"}, "unknown center 'sum'; choose one of: mse, sum_half"),
        ({"dynamic": "rampe"}, "did you mean 'ramp'?"),
        ({"dynamic": "ramp", "kd_low": 0.6}, "algorithm.kd_low = 0.6: must be at most kd_high = 0.25"),
        ({"kd_high": 1.1}, "algorithm.kd_high = 1.1: must be in [0, 1]"),
        ({"temperature": 0.0}, "algorithm.temperature = 0.0: must be above 0"),
        ({"head_lr": 0.0}, "algorithm.head_lr = 0.0: must be above 0"),
        ({"global_epochs": -1}, "algorithm.global_epochs = -1: must be at least 0"),
        ({"augment_ops": 100_000}, "algorithm.augment_ops = 100000: must be in [1, 10]"),
        ({"head_epochs": 0, "global_epochs": 0, "local_epochs": 0}, "nothing is trained"),
        ({"augment_magnitude": 31}, "algorithm.augment_magnitude = 31: must be in [1, 30]"),
    ],
)
def test_wrong_values_are_refused(values, said):
    with pytest.raises(InputError) as error:
        FedeCouple(**values)
    assert said in str(error.value)


def test_what_is_shared_and_what_is_kept():
    ctx = toys.setting(FedeCouple()).client(0, 0)
    assert FedeCouple().uploaded(ctx) == Part.ALL
    assert not FedeCouple().kept(ctx).holds(frozenset({"backbone"}))


@pytest.mark.parametrize("round", [0, 1, 2])
def test_images_are_augmented_in_every_phase_of_every_round(round, monkeypatch):
    fitted = []
    monkeypatch.setattr(Context, "fit", lambda self, model, loss, data, **how: fitted.append(data) or model)
    for augmented in (True, False):
        stage = toys.setting(FedeCouple(augment=augmented))
        received = stage.algorithm.broadcast(stage.algorithm.init_server(stage.server(0)), 1, stage.server(round))
        ctx = stage.client(round, 1)
        private = stage.algorithm.init_private(received, ctx)
        stage.algorithm.local_update(received, private, stage.parties.train(1), ctx)
    assert [len(data.maps) for data in fitted] == [1, 1, 1, 0, 0, 0]
    assert all(isinstance(data.maps[0], augment.RandAugment) for data in fitted[:3])


def test_private_buffers_stay_with_their_client():
    values = {"model__name": "resnet8", "model__width": 2, "train__rounds": 2, "train__epochs": 1, "train__batch": 32}
    method = FedeCouple(augment=False)
    result = toys.run(method, cohorts=[[0, 1]] * 2, run__buffers="private", **values)
    initial = toys.setting(method, **values).network.initial
    statistics = [name for name in initial if name.endswith("running_var")]
    for name in statistics:
        assert torch.equal(result.server.model[name], initial[name])
        assert not torch.equal(result.private[0].model[name], result.private[1].model[name])
    stage = toys.setting(method, buffers="private", **values)
    received = method.broadcast(result.server, 0, stage.server(2))
    model = method.assemble(received, result.private[0])
    assert all(torch.equal(model[name], result.private[0].model[name]) for name in statistics)


def test_a_larger_budget_is_said():
    def said(epochs, **options):
        heard = []
        toys.experiment(FedeCouple(augment=False, **options), train__epochs=epochs, train__rounds=1).run(
            on_event=heard.append
        )
        return [event.message for event in heard if isinstance(event, Warned)]

    assert said(1) == ["the backbone is trained for 2 epochs a round, not for train.epochs = 1"]
    assert said(2, global_epochs=2) == ["the backbone is trained for 3 epochs a round, not for train.epochs = 2"]
    assert said(2) == said(3) == []


def test_what_cannot_be_augmented_is_refused_before_anything_is_stored(monkeypatch, tmp_path):
    real = augment.importlib.import_module

    def missing(name):
        if name.startswith("kornia"):
            raise ImportError(name)
        return real(name)

    monkeypatch.setattr(augment.importlib, "import_module", missing)
    with pytest.raises(InputError, match="needs kornia"):
        toys.run(FedeCouple(), folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert toys.run(FedeCouple(augment=False)).rows
