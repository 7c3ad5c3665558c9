import methods
import toys

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


def test_words_of_shapes():
    assert toys.setting().words(1) == {"image": (1, 8, 8), "n": (3,), "classes": (4,), "features": (8,)}


def test_contexts_hold_what_the_config_says():
    stage = toys.setting(train__momentum=0.5, train__clip=2.0, train__weight_decay=0.25)
    ctx = stage.client(2, 3)
    assert (ctx.round, ctx.rounds, ctx.party, ctx.clients, ctx.classes, ctx.feature_dim) == (2, 3, 3, 6, 4, 8)
    assert (ctx.epochs, ctx.batch) == (2, 8)
    assert (ctx.sgd.lr, ctx.sgd.momentum, ctx.sgd.clip, ctx.sgd.weight_decay) == (0.2, 0.5, 2.0, 0.25)
    assert len(stage.server(2).auxiliary) == 20
