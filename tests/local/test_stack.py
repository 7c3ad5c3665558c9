"""The pieces of stacked training, against numbers worked out by hand and against each client alone."""

from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import numpy as np
import pytest
import torch
import toys
from torch import nn

from manyheads.contract import SGD, Batch, Part, Proximal, Tree
from manyheads.contract.trainer import Plan
from manyheads.errors import RunError
from manyheads.local.losses import ce
from manyheads.local.network import Network
from manyheads.local.stacked import crowd
from manyheads.local.stacked.fit import fit
from manyheads.local.stacked.network import batch_statistics
from manyheads.local.stacked.request import Fit, Scan, groups, identity
from manyheads.local.stacked.scan import scan
from manyheads.local.stacked.values import NotStackableError, StackedBatch, apart, likeness, pad, pick, stack
from manyheads.local.steps import StoppedError
from manyheads.local.training import LocalTrainer
from manyheads.models import SplitModel
from manyheads.models.dropout import Dropout

PLAN = Plan(range(1), None, 2)


def network(dropout=0.0):
    backbone = nn.Sequential(nn.Flatten(), nn.Linear(1, 4), nn.Tanh(), Dropout(dropout))
    return Network(SplitModel(backbone, nn.Linear(4, 2)).parts())


def loss(m, b):
    return {"ce": ce(m.head(m.backbone(b.x)), b)}


def clients(net, *sizes, **changes):
    """Fits of clients with 1, 2, 3, ... as images."""
    found = []
    for party, size in enumerate(sizes):
        data = toys.data([float(i + 1 + party) for i in range(size)], [i % 2 for i in range(size)])
        values = {"loss": loss, "trains": Part.ALL, "plan": PLAN, "optim": SGD(0.5), **changes}
        found.append(Fit(toys.context(net, party=party), net.initial, data=data, **values))
    return found


def assert_like_alone(net, requests, answers):
    assert [request for request, _ in answers] == sorted(requests, key=lambda r: -len(r.steps))
    for request, answer in answers:
        trace = request.ctx.trace.copy()
        alone = request.alone(LocalTrainer(net))
        for name, tensor in alone.items():
            assert torch.allclose(answer[name], tensor, rtol=1e-5, atol=1e-7), name
        assert trace == [pytest.approx(request.ctx.trace[-1])]


def test_a_proximal_term_is_logged_at_the_steps_at_which_it_is_alone():
    net = network()

    def near(m, b):
        return {**loss(m, b), "prox": Proximal(0.5, m.params, b.reference)}

    requests = [
        replace(request, data=request.data.given(reference=net.initial.map(torch.zeros_like)))
        for request in clients(net, 6, 40, 66, loss=near, optim=SGD(0.01))  # 3, 20 and 33 steps
    ]
    assert_like_alone(net, requests, fit(net, requests, lambda: False))


def test_padding_repeats_the_first_row():
    assert pad(torch.tensor([[1, 2], [3, 4]]), 4).tolist() == [[1, 2], [3, 4], [1, 2], [1, 2]]
    whole = torch.tensor([1, 2])
    assert pad(whole, 2) is whole


def test_values_are_stacked_and_taken_apart_again():
    values = [
        (Tree({"a": torch.tensor([1.0 * k])}), torch.tensor(2 * k), 7, {"b": torch.tensor(3 * k)}) for k in (1, 2)
    ]
    assert likeness(values[0]) == likeness(values[1]) != likeness((*values[0][:2], 8, values[0][3]))
    tensors, rebuild = stack(values)
    assert [t.tolist() for t in tensors] == [[[1.0], [2.0]], [2, 4], [3, 6]]
    for k in (0, 1):
        assert pick(tensors, rebuild, k) == values[k]
    assert apart(3)[0] == []
    taken, _ = apart(pick(tensors, rebuild, 0))
    taken[0].add_(1)
    assert tensors[0].tolist() == [[1.0], [2.0]]


def batch(n, **extra):
    return Batch(torch.arange(n).float(), torch.zeros(n, dtype=torch.int64), torch.arange(n), extra)


def test_batches_of_unequal_size_get_a_mask():
    anchors = torch.ones(5)
    made = StackedBatch(
        [batch(2, soft=torch.tensor([1.0, 2.0]), anchors=anchors), batch(3, soft=torch.ones(3))],
        [{"anchors": anchors}, {}],
    )
    assert (made.size, made.counts) == (3, [2, 3])
    one = made.one([t[0] for t in made.tensors], {"scale": 2.0})
    assert (one.x.tolist(), one.mask.tolist(), one.soft.tolist(), one.scale) == ([0, 1, 0], [1, 1, 0], [1, 2, 1], 2.0)
    assert one.mean(torch.tensor([1.0, 2.0, 100.0])).item() == 1.5
    same = StackedBatch([batch(2), batch(2)], [{}, {}])
    assert same.one([t[0] for t in same.tensors], {}).mask is None


def test_what_is_not_one_value_a_sample_cannot_be_padded():
    with pytest.raises(NotStackableError, match="the batch's 'odd' is not one value for each sample"):
        StackedBatch([batch(2, odd=torch.ones(3))], [{}])


@pytest.mark.parametrize("optim", [SGD(0.5, momentum=0.9, weight_decay=0.1), SGD(0.5, clip=0.05)])
def test_unequal_clients_are_trained_as_alone(optim):
    net = network(dropout=0.5)
    requests = clients(net, 1, 7, 4, optim=optim, plan=Plan(range(2), None, 2))  # 2, 6 and 4 steps; 7 = 2 + 2 + 3
    assert [len(request.steps) for request in requests] == [2, 6, 4]
    assert_like_alone(net, requests, fit(net, requests, lambda: False))


def test_a_client_that_is_done_costs_nothing(monkeypatch):
    real, widths = crowd.vmap, []

    def vmap(fn, **options):
        def run(places, *values):
            widths.append(len(places))
            return real(fn, **options)(places, *values)

        return run

    monkeypatch.setattr(crowd, "vmap", vmap)
    net = network()
    fit(net, clients(net, 2, 6, 4), lambda: False)
    assert widths == [3, 2, 1]


def test_dropout_over_several_batches_in_a_row_is_as_alone():
    def thrice(m, b):
        first, *others = m.head(m.backbone(torch.cat([b.x, b.x + 1, b.x * 2]))).chunk(3)
        return {"ce": ce(first, b) + sum(ce(other, b) for other in others)}

    net = network(dropout=0.5)
    requests = clients(net, 3, 5, 2, loss=thrice)
    assert_like_alone(net, requests, fit(net, requests, lambda: False))


class Counted(nn.Linear):
    """Notes how many rows it sees at a time."""

    seen: ClassVar[list[int]] = []

    def forward(self, x):
        self.seen.append(len(x))
        return super().forward(x)


def test_a_frozen_backbone_is_asked_once_a_sample():
    net = Network(SplitModel(nn.Sequential(nn.Flatten(), Counted(1, 4), Dropout(0.5)), nn.Linear(4, 2)).parts())
    requests = clients(net, 3, 6, trains=Part.HEAD, plan=Plan(range(3), None, 2))
    Counted.seen.clear()
    answers = fit(net, requests, lambda: False)
    assert Counted.seen == [64, 64]  # each client's images in one pass, which is padded to 64 rows
    assert_like_alone(net, requests, answers)
    for _, answer in answers:
        assert answer.part("backbone") == net.initial.part("backbone")


def test_columns_constants_draws_and_maps_are_each_clients_own():
    def odd(m, b):
        z = m.backbone(b.x)
        far = (m.at(b.other).head(z) - b.soft).square().mean(dim=1)
        return {**loss(m, b), "far": b.mean(far * b.noise), "pull": b.scale * b.own * m.params["head.bias"].sum()}

    net, requests = network(), []
    for request in clients(net, 3, 5, loss=odd):
        party = request.ctx.party
        data = request.data.with_(soft=torch.rand(len(request.data), 2), twice=lambda x: x.flatten(1) * 2)
        data = data.given(other=net.initial * (1.0 + party), own=torch.tensor(0.1 * party), scale=2.0)
        data = data.draw(noise=lambda n, rng: torch.rand(n, generator=rng))
        data = data.map(lambda b, rng: b.replace(x=b.x + torch.rand(b.x.shape, generator=rng)))
        requests.append(replace(request, data=data))
    assert_like_alone(net, requests, fit(net, requests, lambda: False))


def test_a_parameter_that_the_loss_leaves_out_does_not_decay():
    def headless(m, b):
        return {"far": b.mean(m.backbone(b.x).square().mean(dim=1))}

    net = network()
    requests = clients(net, 2, 4, loss=headless, optim=SGD(0.5, weight_decay=0.5))
    answers = fit(net, requests, lambda: False)
    assert_like_alone(net, requests, answers)
    assert answers[0][1].part("head") == net.initial.part("head")


def test_a_loss_that_forgets_the_padding_is_found_out():
    def careless(m, b):
        return {"ce": nn.functional.cross_entropy(m.head(m.backbone(b.x)), b.y)}

    net = network()
    equal = clients(net, 4, 4, loss=careless)
    assert_like_alone(net, equal, fit(net, equal, lambda: False))
    with pytest.raises(NotStackableError, match=r"its loss 'ce' is another where batches are padded"):
        fit(net, clients(net, 4, 3, loss=careless, plan=Plan(range(1), None, 4)), lambda: False)


def test_a_loss_that_is_not_finite_names_its_client():
    def sick(m, b):
        return {**loss(m, b), "sick": b.bad * m.params["head.bias"].sum()}

    net = network()
    requests = [
        replace(request, data=request.data.given(bad=torch.tensor(bad)), loss=sick)
        for request, bad in zip(clients(net, 4, 4, 2), (0.0, float("nan"), 0.0), strict=True)
    ]
    answers = {request.ctx.party: answer for request, answer in fit(net, requests, lambda: False)}
    with pytest.raises(RunError) as alone:
        requests[1].alone(LocalTrainer(net))
    assert isinstance(answers[1], RunError)
    assert str(answers[1]) == str(alone.value)
    assert isinstance(answers[0], Tree)
    assert isinstance(answers[2], Tree)


def test_training_stops_when_it_is_told_to():
    with pytest.raises(StoppedError):
        fit(network(), clients(network(), 2, 4), lambda: True)


@pytest.mark.parametrize("width", [1, 2])
def test_step_rules_are_each_clients_own(width):
    net = network(dropout=0.5)
    requests = []
    for request in clients(net, 1, 7, 4):

        def step(carry, batches, grad):
            tree, total, number = carry
            first, last = (batches, batches) if width == 1 else batches
            one, value = grad(loss, tree, first, Part.ALL, 1)
            two, _ = grad(loss, tree, last, Part.HEAD)
            three, _ = grad(loss, tree, first, Part.ALL, 1)  # the masks of the first call
            return tree.descend(one, 0.1).descend(two, 0.1).descend(three, 0.1), total + value, number + 1

        requests.append(Scan(request.ctx, (net.initial, torch.tensor(0.0), 0), step, request.data, PLAN, width))
    assert [len(together) for together, _ in groups(requests)] == [3]
    for request, (tree, total, number) in scan(net, requests, lambda: False):
        wanted, sums, steps = request.alone(LocalTrainer(net))
        assert number == steps == len(request.steps)
        assert torch.allclose(total, sums, rtol=1e-5)
        for name in wanted:
            assert torch.allclose(tree[name], wanted[name], rtol=1e-5, atol=1e-7), name


def test_a_step_rule_gets_no_gradient_of_what_the_loss_leaves_out():
    def step(carry, b, grad):
        tree, names = carry
        gradient, _ = grad(lambda m, b: {"far": b.mean(m.backbone(b.x).square().mean(dim=1))}, tree, b)
        return tree.descend(gradient, 0.1), (*names, *gradient)[-2:]

    net = network()
    requests = [Scan(r.ctx, (net.initial, ()), step, r.data, PLAN, 1) for r in clients(net, 4, 2)]
    for _, (_, names) in scan(net, requests, lambda: False):
        assert names == ("backbone.1.bias", "backbone.1.weight")


def test_which_requests_are_alike():
    net = network()
    a, b, other = clients(net, 2, 3, 4)
    faster = replace(other, optim=SGD(0.1))
    idle = replace(other, plan=Plan(range(0), None, 2))
    found = groups([a, faster, b, idle])
    assert [([r.ctx.party for r in together], reason) for together, reason in found] == [
        ([0, 1], ""),
        ([2], ""),
        ([2], ""),
    ]
    longer = replace(b, plan=Plan(range(1, 4), None, 4))
    assert [len(together) for together, _ in groups([a, longer])] == [2]
    assert_like_alone(net, [a, longer], fit(net, [a, longer], lambda: False))
    heavy = replace(b, data=b.data.given(weight=2.0))
    light = replace(a, data=a.data.given(weight=1.0))
    assert [len(together) for together, _ in groups([heavy, light])] == [1, 1]


def test_functions_are_alike_by_what_they_close_over():
    def made(value):
        def rule(x):
            return x * value

        return rule

    assert identity(made(2.0), "it") == identity(made(2.0), "it") != identity(made(3.0), "it")
    assert identity(made(made(2.0)), "it") == identity(made(made(2.0)), "it")
    contexts = [toys.context(network(), party=k) for k in (0, 1)]
    assert identity(made(contexts[0]), "it") == identity(made(contexts[1]), "it")
    for value, kind in ((torch.ones(1), "Tensor"), (made(Tree()), "Tree")):
        with pytest.raises(NotStackableError, match=rf"^its rule closes over 'value', which .*is a {kind}: give it to"):
            identity(made(value), "its rule")


def test_functions_are_alike_by_their_defaults():
    def made(value):
        def rule(x, scale=value, *, shift=value):
            return x * scale + shift

        return rule

    def keyword_only(value):
        def rule(x, *, shift=value):
            return x + shift

        return rule

    for define in (made, keyword_only):
        assert identity(define(2.0), "it") == identity(define(2.0), "it") != identity(define(3.0), "it")
        for value, kind in ((torch.ones(2), "Tensor"), (Tree(), "Tree"), (np.ones(2), "ndarray")):
            with pytest.raises(NotStackableError, match=f"^its rule has a default, which is a {kind}: give it to"):
                identity(define(value), "its rule")


def test_partials_are_alike_by_what_they_are_given():
    def rule(x, a=0, b=0):
        return x + a - b

    alike = identity(partial(rule, a=1), "it")
    assert alike == identity(partial(rule, a=1), "it")
    for other in (partial(rule, b=1), partial(rule, a=2), partial(rule, 1), rule):
        assert identity(other, "it") != alike
    for other in (partial(rule, torch.ones(2)), partial(rule, a=torch.ones(2))):
        with pytest.raises(NotStackableError, match="is a Tensor"):
            identity(other, "it")


@pytest.mark.parametrize("wrapped", [lambda v: [v], lambda v: (v, 1), lambda v: {"a": v}, lambda v: [{"a": (v,)}]])
def test_what_is_in_a_container_counts(wrapped):
    def made(value):
        return lambda x: (x, value)

    assert identity(made(wrapped(2.0)), "it") == identity(made(wrapped(2.0)), "it")
    assert identity(made(wrapped(made(2.0))), "it") == identity(made(wrapped(made(2.0))), "it")
    for other in (3.0, 2, True):
        assert identity(made(wrapped(2.0)), "it") != identity(made(wrapped(other)), "it")
    with pytest.raises(NotStackableError, match=r"closes over 'value', which is a Tensor"):
        identity(made(wrapped(torch.ones(2))), "it")


def test_a_function_may_close_over_itself():
    def made(value):
        def rule(x):
            return rule(x - value) if x > 0 else x

        return rule

    assert identity(made(2), "it") == identity(made(2), "it") != identity(made(3), "it")


@dataclass(frozen=True)
class Scaled:
    """Its == is an error where the tensor has more than one number."""

    scale: object

    def __call__(self, m, b):
        return {name: term * torch.as_tensor(self.scale).sum() for name, term in loss(m, b).items()}


class Odd:
    """Its == answers neither yes nor no."""

    def __eq__(self, other):
        return np.array([True, True])


@pytest.mark.parametrize("make", [lambda: Scaled(torch.ones(2)), lambda: Scaled(np.ones(2)), Odd])
def test_what_cannot_be_compared_is_like_itself_only(make):
    def made(value):
        return lambda x: (x, value)

    one = make()
    assert identity(made(one), "it") == identity(made(one), "it") != identity(made(make()), "it")
    assert identity(made(Scaled(2.0)), "it") == identity(made(Scaled(2.0)), "it")
    assert identity(made(np.float32(2)), "it") == identity(made(np.float32(2)), "it")
    assert likeness((one,)) == likeness((one,)) != likeness((make(),))


def test_no_client_is_trained_with_what_is_anothers():
    def pulled(target, *, how):
        def by_default(m, b, target=target):
            return {**loss(m, b), "pull": (m.params["head.bias"] - target).square().sum()}

        def by_keyword(m, b, *, target=target):
            return by_default(m, b, target)

        def by_list(m, b):
            return by_default(m, b, *held)

        held = [target]
        return {"default": by_default, "keyword": by_keyword, "list": by_list, "object": Scaled(target)}[how]

    net = network()
    for how in ("default", "keyword", "list", "object"):
        requests = [
            replace(request, loss=pulled(torch.full((2,), float(request.ctx.party)), how=how))
            for request in clients(net, 4, 4)
        ]
        found = groups(requests)
        assert [together for together, _ in found] == [[requests[0]], [requests[1]]], how
        assert all("is a Tensor" in reason for _, reason in found) == (how != "object")
    arrays = [replace(r, data=r.data.given(scale=np.ones(2))) for r in clients(net, 4, 4)]
    assert [len(together) for together, _ in groups(arrays)] == [1, 1]


def test_layers_with_batch_statistics():
    norms = nn.Sequential(nn.BatchNorm2d(1), nn.InstanceNorm2d(1), nn.GroupNorm(1, 1), nn.Flatten())
    net = Network({"backbone": norms, "head": nn.Sequential(nn.InstanceNorm1d(1, track_running_stats=True))})
    assert batch_statistics(net) == {"backbone.0": "BatchNorm2d", "head.0": "InstanceNorm1d"}
