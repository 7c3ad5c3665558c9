import itertools
import math
from itertools import pairwise

import pytest
import torch
import toys
from torch import nn

from manyheads.contract import SGD, Part, Proximal, Tree
from manyheads.contract.context import Plan
from manyheads.errors import RunError
from manyheads.local import training
from manyheads.local.network import Network
from manyheads.local.steps import measured
from manyheads.local.training import steps_of


@pytest.fixture
def slope():
    """One weight that starts at 1; with ``answer`` as loss its gradient is the mean of x."""
    head = nn.Linear(1, 1, bias=False)
    nn.init.ones_(head.weight)
    return Network({"backbone": nn.Flatten(), "head": head})


def answer(m, b):
    return {"answer": b.mean(m.head(m.backbone(b.x)).squeeze(1))}


def fitted(network, data, loss=answer, **options):
    changes = {name: options.pop(name) for name in ("epochs", "batch", "sgd", "round", "party") if name in options}
    ctx = toys.context(network, **changes)
    return ctx.fit(network.initial, loss, data, **options)


def weight(tree):
    return tree["head.weight"].item()


@pytest.mark.parametrize(
    ("sgd", "epochs", "expected"),
    [
        (SGD(0.1), 1, 1 - 0.1 * 2),
        (SGD(0.1), 3, 1 - 3 * 0.1 * 2),
        # v = 2, then 0.9 * 2 + 2 = 3.8
        (SGD(0.1, momentum=0.9), 2, 1 - 0.1 * 2 - 0.1 * 3.8),
        # g = 2 + 0.5 * 1
        (SGD(0.1, weight_decay=0.5), 1, 1 - 0.1 * 2.5),
        (SGD(0.1, clip=0.5), 1, 1 - 0.1 * 0.5),
        (SGD(0.1, clip=2.5), 1, 1 - 0.1 * 2),
        # decay comes after clipping, momentum after both: v = 0.5 + 0.5 * 1, w = 0.9; v = 0.9 * 1 + 0.5 + 0.5 * 0.9
        (SGD(0.1, momentum=0.9, weight_decay=0.5, clip=0.5), 2, 0.9 - 0.1 * (0.9 + 0.5 + 0.45)),
    ],
)
def test_steps_by_hand(slope, sgd, epochs, expected):
    tree = fitted(slope, toys.data([1, 2, 3]), sgd=sgd, epochs=epochs)
    assert weight(tree) == pytest.approx(expected, rel=1e-6)
    assert weight(slope.initial) == 1.0


def test_steps_have_the_bits_of_torch():
    parts = toys.setting(model__dropout=0.0).network
    x = torch.randn(8, 1, 8, 8, generator=torch.Generator().manual_seed(0)).contiguous(
        memory_format=torch.channels_last
    )
    data = toys.data(x, list(range(4)) * 2)
    sgd = SGD(0.1, momentum=0.9, weight_decay=0.01)

    def loss(m, b):
        return {"ce": nn.functional.cross_entropy(m.head(m.backbone(b.x)), b.y)}

    ctx = toys.context(parts, epochs=3, sgd=sgd, classes=4)
    found = ctx.fit(parts.initial, loss, data)
    bound = parts.bind(training.channels_last(parts.initial), list(parts.initial))
    optimizer = torch.optim.SGD(bound.modules.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01, foreach=False)
    for step in steps_of(ctx, 8, Plan(range(3), None, 64)):
        optimizer.zero_grad()
        logits = bound.modules["head"](bound.modules["backbone"](x[step.rows]))
        nn.functional.cross_entropy(logits, data.y[step.rows]).backward()
        optimizer.step()
    assert found == bound.tree().map(lambda t: t.contiguous())


def test_momentum_starts_afresh_in_every_fit(slope):
    data = toys.data([1, 2, 3])
    ctx = toys.context(slope, sgd=SGD(0.1, momentum=0.9))
    twice = ctx.fit(ctx.fit(slope.initial, answer, data), answer, data)
    assert weight(twice) == pytest.approx(1 - 0.2 - 0.2, rel=1e-6)


@pytest.mark.parametrize(
    ("n", "batch", "sizes"),
    [
        (65, 64, [65]),
        (66, 64, [64, 2]),
        (129, 64, [64, 65]),
        (1, 64, [1]),
        (3, 64, [3]),
        (64, 64, [64]),
        (3, 1, [1, 2]),
        (9, 4, [4, 5]),
    ],
)
def test_batches(slope, n, batch, sizes):
    ctx = toys.context(slope, batch=batch)
    steps = steps_of(ctx, n, Plan(range(2), None, batch))
    assert [(s.epoch, len(s.rows)) for s in steps] == [(epoch, size) for epoch in (0, 1) for size in sizes]
    for epoch in (0, 1):
        rows = torch.cat([s.rows for s in steps if s.epoch == epoch])
        assert sorted(rows.tolist()) == list(range(n))
    assert len(steps) == ctx.steps(toys.data([0.0] * n), epochs=2)


def test_steps_run_over_as_many_epochs_as_they_need(slope):
    ctx = toys.context(slope)
    steps = steps_of(ctx, 5, Plan(range(1), 5, 2))
    assert [(s.epoch, s.number, len(s.rows)) for s in steps] == [(0, 0, 2), (0, 1, 3), (1, 0, 2), (1, 1, 3), (2, 0, 2)]
    assert steps_of(ctx, 5, Plan(range(9), 0, 2)) == []


def seen(network, data, **options):
    """The samples in the order in which a fit visits them."""
    order = []

    def loss(m, b):
        order.append(b.rows.tolist())
        return {"mean": b.mean(m.head(m.backbone(b.x))[:, 0])}

    fitted(network, data, loss, **options)
    return [row for rows in order for row in rows]


def test_the_order_of_samples_depends_on_round_client_and_epoch_alone(slope):
    data = toys.data(range(20))
    whole = seen(slope, data, epochs=2)
    first, second = whole[:20], whole[20:]
    assert first != second
    assert seen(slope, data, epochs=range(1, 2)) == second  # however many were drawn before
    assert seen(slope, data, epochs=1, batch=3) == first
    assert seen(slope, data, epochs=1, round=1) != first
    assert seen(slope, data, epochs=1, party=1) != first
    with_dropout = toys.setting(model__dropout=0.5).network
    assert seen(with_dropout, toys.data(torch.zeros(20, 1, 8, 8)), epochs=2) == whole


def test_no_step_is_shared_by_two_streams(slope):
    orders = [
        tuple(seen(slope, toys.data(range(12)), round=r, party=p, epochs=range(e, e + 1)))
        for r, p, e in itertools.product(range(-1, 3), range(3), range(3))
    ]
    assert len(set(orders)) == len(orders)


def test_what_is_frozen_does_not_move(slope):
    parts = Network({"backbone": nn.Sequential(nn.Flatten(), nn.Linear(1, 2)), "head": nn.Linear(2, 1)})
    sgd = SGD(0.1, momentum=0.9, weight_decay=0.1)
    tree = fitted(parts, toys.data([1, 2, 3]), sgd=sgd, trains=Part.HEAD, epochs=5)
    assert tree.part("backbone") == parts.initial.part("backbone")
    assert tree.part("head") != parts.initial.part("head")
    nothing = fitted(parts, toys.data([1, 2, 3]), trains=Part.NONE)
    assert nothing == parts.initial


def test_an_optimizer_for_each_part():
    parts = Network({"backbone": nn.Sequential(nn.Flatten(), nn.Linear(1, 1)), "head": nn.Linear(1, 1)})
    data = toys.data([1, 2, 3])
    both = fitted(parts, data, optim={Part.HEAD: SGD(0.2), Part.ALL: SGD(0.1)})
    head, backbone = (fitted(parts, data, optim=SGD(lr)) for lr in (0.2, 0.1))
    assert both == head.replace(backbone=backbone.part("backbone"))
    with pytest.raises(ValueError, match=r"no optimizer was given for backbone\.1\.weight"):
        fitted(parts, data, optim={Part.HEAD: SGD(0.2)})


def test_a_frozen_function_is_asked_once_for_each_sample(slope):
    asked = []

    def teacher(x):
        asked.append(len(x))
        return x.flatten(1) * 10

    def loss(m, b):
        assert torch.equal(b.teacher, b.x.flatten(1) * 10)
        return answer(m, b)

    fitted(slope, toys.data(range(100)).with_(teacher=teacher), loss, epochs=3, batch=7)
    assert asked == [128]  # 100 rows, padded


def test_a_frozen_function_sees_the_augmented_images(slope):
    asked = []

    def teacher(x):
        asked.append(len(x))
        return x.flatten(1) * 10

    def loss(m, b):
        assert torch.equal(b.teacher, b.x.flatten(1) * 10)
        assert not torch.equal(b.x.flatten(), b.rows.float())
        return answer(m, b)

    def shift(b, generator):
        return b.replace(x=b.x + torch.rand((), generator=generator))

    fitted(slope, toys.data(range(5)).map(shift).with_(teacher=teacher), loss, epochs=2, batch=3)
    assert asked == [3, 2, 3, 2]


def test_columns_and_constants_arrive_with_the_batch(slope):
    data = toys.data(range(5)).with_(soft=torch.arange(5.0) * 2).given(anchors=Tree({"a": torch.ones(1)}), scale=3.0)

    def loss(m, b):
        assert torch.equal(b.soft, b.rows * 2.0)
        assert b.anchors["a"].item() == 1.0
        assert b.scale == 3.0
        return answer(m, b)

    assert weight(fitted(slope, data, loss, batch=2)) != 1.0


def test_a_frozen_part_is_run_once_and_says_the_same():
    calls = []

    class Counted(nn.Linear):
        def forward(self, x):
            calls.append(len(x))
            return super().forward(x)

    parts = Network({"backbone": nn.Sequential(nn.Flatten(), Counted(1, 2)), "head": nn.Linear(2, 1)})
    data = toys.data(range(10))
    tree = fitted(parts, data, trains=Part.HEAD, epochs=4, batch=3)
    assert calls == [64]
    plain = fitted(parts, data.map(lambda b, generator: b), trains=Part.HEAD, epochs=4, batch=3)
    assert len(calls) == 1 + 4 * 3
    torch.testing.assert_close(dict(tree), dict(plain))


def test_dropout_has_a_stream_for_every_step():
    stage = toys.setting(model__dropout=0.5)
    outputs = {}

    def loss(m, b):
        z = m.backbone(b.x)
        outputs.setdefault(len(outputs), z.detach().clone())
        return {"zero": 0 * z.sum() + 0 * sum(p.sum() for p in m.params.values())}

    data = toys.data(torch.ones(4, 1, 8, 8), [0] * 4)
    ctx = stage.client(0, 0)
    ctx.fit(stage.network.initial, loss, data, epochs=2, batch=2)
    assert len(outputs) == 4
    assert all(not torch.equal(a, b) for a, b in itertools.combinations(outputs.values(), 2))
    before = dict(outputs)
    outputs.clear()
    ctx.fit(stage.network.initial, loss, data, epochs=range(1, 2), batch=2)
    assert torch.equal(outputs[0], before[2])
    assert torch.equal(outputs[1], before[3])


def test_fitting_leaves_the_argument_alone():
    stage = toys.setting(model__name="resnet8", model__width=2)
    before = stage.network.initial.clone()
    ctx = stage.client(0, 0)
    fit = ctx.fit(stage.network.initial, stage.algorithm.loss, stage.parties.train(0), epochs=1)
    assert stage.network.initial == before
    assert fit != before


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_stops(slope, bad):
    def loss(m, b):
        return {**answer(m, b), "prox": torch.tensor(bad)}

    with pytest.raises(RunError) as caught:
        fitted(slope, toys.data([1, 2]), loss, round=3, party=7)
    message = str(caught.value)
    for word in ("round 3", "client 7", "'prox'", "epoch 0", "step 0"):
        assert word in message
    assert "\n" not in message


def test_a_short_fit_measures_proximal_terms_at_every_step_and_a_long_one_at_some():
    for steps in range(1, 200):
        places = [place for place in range(steps) if measured(place, steps)]
        assert len(places) == steps if steps < 16 else 8 <= len(places) <= 11
        assert len({later - one for one, later in pairwise(places)}) <= 1
        every = max(1, steps // 8)
        assert places[0] == every // 2
        assert steps - 1 - places[-1] < 1.5 * every


@pytest.mark.parametrize("samples", [6, 80])
def test_the_trace_holds_the_proximal_term_where_it_was_measured(slope, samples):
    met = []

    def loss(m, b):
        met.append(Proximal(2.0, m.params, b.reference)().item())
        return {**answer(m, b), "prox": Proximal(2.0, m.params, b.reference)}

    ctx = toys.context(slope, epochs=1, sgd=SGD(0.001), batch=2)
    data = toys.data([1.0] * samples).given(reference=slope.initial.map(torch.zeros_like))
    ctx.fit(slope.initial, loss, data)
    seen = met if samples == 6 else met[2::5]
    assert len(seen) in (3, 8)
    assert ctx.trace[0]["prox"] == pytest.approx(sum(seen) / len(seen))


def test_the_trace_holds_mean_terms(slope):
    ctx = toys.context(slope, epochs=2, sgd=SGD(0.1))
    ctx.fit(slope.initial, lambda m, b: {**answer(m, b), "one": torch.ones(())}, toys.data([1, 2, 3]))
    assert ctx.trace == [{"answer": pytest.approx((2 + 1.6) / 2), "one": 1.0}]
