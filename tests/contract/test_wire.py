import math
import re
from dataclasses import dataclass
from typing import ClassVar

import methods
import pytest
import torch
import toys

from manyheads.algorithms.fedper import FedPer
from manyheads.contract import Broadcast, Part, PrivateState, ServerState, Tree, Upload
from manyheads.contract.wire import WireError, check_broadcast, check_finite, check_state, check_upload


@dataclass(frozen=True)
class Declares(FedPer):
    sends: ClassVar = {
        "means": ("classes", "features"),
        "mine": ("n",),
        "pictures": ("2", "image"),
        "control": Part.HEAD,
    }


@pytest.fixture(scope="module")
def stage():
    return toys.setting(Declares())


@pytest.fixture(scope="module")
def ctx(stage):
    return stage.client(0, 1)


def good(ctx, **changes):
    fields = {
        "model": ctx.take(ctx.initial, Part.BACKBONE),
        "weight": 3.0,
        "means": torch.zeros(4, 8),
        "mine": torch.zeros(3),
        "pictures": torch.zeros(2, 1, 8, 8),
        "control": ctx.take(ctx.initial, Part.HEAD),
    }
    return Upload(**(fields | changes))


def test_what_is_declared_passes(stage, ctx):
    check_upload(good(ctx), Declares(), ctx, stage.words(1))


def test_what_is_not_declared_is_refused_by_name(stage, ctx):
    some = torch.zeros(1)
    wrong_head = ctx.take(ctx.initial, Part.HEAD)
    backbone = ctx.take(ctx.initial, Part.BACKBONE)
    cases = {
        "field 'secret' of the upload is not declared": {"secret": some},
        "'head.bias', which is outside its declared part backbone": {
            "model": backbone | Tree({"head.bias": ctx.initial["head.bias"]})
        },
        "'stowaway', which is outside": {"model": backbone | Tree({"stowaway": some})},
        "lacks 'backbone.conv1.bias'": {"model": Tree({k: v for k, v in backbone.items() if k[-10:] != "conv1.bias"})},
        "'backbone.fc.bias' is [8] torch.float64": {
            "model": backbone | Tree({"backbone.fc.bias": torch.zeros(8).double()})
        },
        "'backbone.fc.bias' is [9] torch.float32": {"model": backbone | Tree({"backbone.fc.bias": torch.zeros(9)})},
        "field 'model' of the upload is a Tensor": {"model": some},
        "field 'means' of the upload has the shape (4, 9)": {"means": torch.zeros(4, 9)},
        "'mine' of the upload has the shape (4,); it is declared as (n) = (3,)": {"mine": torch.zeros(4)},
        "field 'pictures' of the upload has the shape (2, 8, 8)": {"pictures": torch.zeros(2, 8, 8)},
        "field 'weight' of the upload has the shape (1,)": {"weight": some},
        "field 'means' of the upload has the shape None": {"means": Tree({"a": some})},
        "'weight' of the upload has the shape None": {"weight": {1: Tree({"a": some})}},
        "field 'control' of the upload holds 'backbone.conv1.bias'": {"control": wrong_head | backbone},
    }
    for message, changes in cases.items():
        with pytest.raises(WireError, match=re.escape(message)) as caught:
            check_upload(good(ctx, **changes), Declares(), ctx, stage.words(1))
        assert "Declares, client 1" in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_broadcast_holds_the_shared_part_and_no_more(ctx):
    check_broadcast(Broadcast(model=ctx.take(ctx.initial, Part.BACKBONE)), FedPer(), ctx)
    check_broadcast(Broadcast(), FedPer(), ctx)
    with pytest.raises(WireError, match=r"FedPer broadcasts 'head\.bias', which is not in its shared part backbone"):
        check_broadcast(Broadcast(model=ctx.initial), FedPer(), ctx)


SPOILED = [
    ({"weight": float("nan")}, "'weight'"),
    ({"means": torch.tensor([0.0, float("nan")])}, "'means'"),
    ({"model": Tree({"a": torch.zeros(2), "b": torch.tensor(float("nan"))})}, "'model/b'"),
]


@pytest.mark.parametrize(
    ("fields", "name"),
    [*SPOILED, ({"weight": float("inf")}, "'weight'"), ({"means": torch.tensor([0.0, float("-inf")])}, "'means'")],
)
def test_what_is_not_finite_is_named(fields, name):
    with pytest.raises(WireError, match=f"^round 4, client 7: the upload's {name} is not finite$"):
        check_finite(Upload(**fields), "round 4, client 7: the upload's")
    check_finite(Upload(weight=1.0, model=Tree({"a": torch.zeros(2), "n": torch.tensor(3)})), "")


def test_numbers_may_be_so_large_that_their_sum_is_not_finite():
    check_finite(Upload(means=torch.full((8,), 3e38), weight=1.0), "")
    check_state(ServerState(known=torch.tensor([-math.inf, 0.0, math.inf])), "")


@pytest.mark.parametrize("weight", [-1.0, torch.tensor(-1.0)])
def test_a_negative_weight_is_refused(weight):
    with pytest.raises(WireError, match=r"^the upload's 'weight' is .*-1\.0.*, below 0$"):
        check_finite(Upload(weight=weight), "the upload's")
    check_finite(Upload(weight=weight * 0, other=-1.0), "the upload's")


@pytest.mark.parametrize(("fields", "name"), [*SPOILED, ({"by": {3: SPOILED[2][0]["model"]}}, "'by@3/b'")])
@pytest.mark.parametrize("kind", [ServerState, PrivateState])
def test_a_state_may_be_infinite_but_not_nan(kind, fields, name):
    with pytest.raises(WireError, match=f"^round 4, the server: {name} is not a number$"):
        check_state(kind(**fields), "round 4, the server:")
    check_state(kind(best=float("inf"), known=torch.tensor([-math.inf, 0.0]), n=torch.tensor(3)), "")


def test_a_run_stops_at_an_undeclared_field():
    more = methods.Sends(more=lambda update, ctx: update.upload.replace(secret=torch.zeros(1)))
    for mode in ("stop", "drop"):  # a wrong method is no accident of training
        with pytest.raises(WireError, match="'secret'"):
            toys.run(more, model__name="mlp", run__non_finite=mode)
