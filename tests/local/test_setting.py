import methods
import torch
import toys
from torch import nn

from manyheads.algorithms.fedavg import FedAvg


def test_the_initial_model_is_the_seed_s():
    first, again, other = (toys.setting(run__seed=seed).network.initial for seed in (0, 0, 1))
    assert first == again
    assert first != other


def test_modules_of_a_method_change_no_bit_of_the_base_model():
    base, more = toys.setting(FedAvg()).network.initial, toys.setting(methods.Adapter()).network.initial
    assert more.part("backbone") == base.part("backbone")
    assert more.part("head") == base.part("head")
    assert set(more) - set(base) == {"adapter.weight", "adapter.bias"}
    assert toys.setting(methods.Adapter()).network.initial == more
    assert toys.setting(methods.Adapter(), run__seed=1).network.initial.part("adapter") != more.part("adapter")


def test_the_base_model_changes_no_bit_of_a_method_s_modules():
    one, other = (toys.setting(methods.Adapter(), model__widths=widths).network.initial for widths in ([3, 4], [2, 5]))
    assert one.part("backbone") != other.part("backbone")
    assert one.part("adapter") == other.part("adapter")


class Dropping(methods.Adapter):
    """Its own module has a dropout layer of torch."""

    def parts(self, base, sizes):
        parts = super().parts(base, sizes)
        return {**parts, "adapter": nn.Sequential(parts["adapter"], nn.Dropout(0.5))}


def test_dropout_in_a_method_s_modules_draws_from_the_run_s_streams():
    mlp = {"model__name": "mlp", "model__hidden": [6], "cohorts": [[0, 1]], "train__rounds": 1}
    torch.manual_seed(1)
    before = torch.get_rng_state()
    one = toys.run(Dropping(), **mlp)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert toys.run(Dropping(), **mlp).server == one.server
    assert toys.run(Dropping(), run__engine="threads", run__workers=2, **mlp).server == one.server
    plain = toys.run(methods.Adapter(), **mlp).server.model  # the same but for the names
    assert not torch.equal(one.server.model["adapter.0.weight"], plain["adapter.weight"])


def test_words_of_shapes():
    assert toys.setting().words(1) == {"image": (1, 8, 8), "n": (3,), "classes": (4,), "features": (8,)}


def test_contexts_hold_what_the_config_says():
    stage = toys.setting(train__momentum=0.5, train__clip=2.0, train__weight_decay=0.25)
    ctx = stage.client(2, 3)
    assert (ctx.round, ctx.rounds, ctx.party, ctx.clients, ctx.classes, ctx.feature_dim) == (2, 3, 3, 6, 4, 8)
    assert (ctx.epochs, ctx.batch) == (2, 8)
    assert (ctx.sgd.lr, ctx.sgd.momentum, ctx.sgd.clip, ctx.sgd.weight_decay) == (0.2, 0.5, 2.0, 0.25)
    assert len(stage.server(2).auxiliary) == 20
