"""Training elsewhere. Here the other device is torch's ``meta``, which no more than a GPU can be mixed with the CPU."""

from dataclasses import replace

import pytest
import torch
import toys

from manyheads.algorithms import registry
from manyheads.contract import SGD, Data, Part, Tree
from manyheads.contract.data import Pixels
from manyheads.contract.trainer import Plan
from manyheads.engines import make_engine
from manyheads.errors import InputError
from manyheads.local import placement
from manyheads.local.client import Task
from manyheads.local.outputs import Outputs
from manyheads.local.placement import PlacedTrainer, Placement, home
from manyheads.local.steps import Log, Step
from manyheads.local.training import Feed


def elsewhere(algorithm):
    """A stage that trains and tests on the other device."""
    stage, there = toys.setting(algorithm), Placement("meta")
    outputs = Outputs(there.data(stage.parties.test), torch.arange(stage.parties.test.index.numel()))
    return replace(stage, placement=there, outputs=outputs)


def test_images_are_sent_once():
    there = Placement("meta")
    images, rows = torch.zeros(5, 1, 1, 1, dtype=torch.uint8), torch.arange(2)
    a, b = (there.data(Data(Pixels(images, (0.0,), (1.0,)), rows, rows)) for _ in range(2))
    assert a.pixels.images is b.pixels.images
    assert a.pixels.images.device.type == a.x(rows).device.type == "meta"


def test_all_of_a_batch_is_there_and_maps_and_draws_are_made_here(monkeypatch):
    seen = []

    def mapped(b, rng):
        seen.append((b.x.device.type, b.soft.device.type if "soft" in b.extra else "", b.tree is tree))
        return b.replace(x=b.x + torch.rand(b.x.shape, generator=rng), more=torch.ones(len(b)))

    def mapped_again(b, rng):
        assert (b.more.device.type, b.tree is tree, b.number) == ("cpu", True, 2.0)
        return b.replace(number=torch.tensor(b.number))

    def drawn(n, rng):
        return torch.rand(n, generator=rng)

    monkeypatch.setattr(torch.Tensor, "cpu", lambda self: torch.zeros(self.shape, dtype=self.dtype))
    real = torch.Tensor.to

    def to(self, *args, **options):  # meta tensors have nothing that could be copied
        back = self.device.type == "meta" and args[:1] == (torch.device("cpu"),)
        return torch.zeros(self.shape, dtype=self.dtype) if back else real(self, *args, **options)

    monkeypatch.setattr(torch.Tensor, "to", to)
    data = toys.data([1, 2, 3]).with_(soft=torch.ones(3), twice=lambda x: x * 2).draw(noise=drawn).map(mapped)
    tree = Tree({"a": torch.ones(1)})
    data = Placement("meta").data(data.map(mapped_again).given(tree=tree, number=2.0))
    net = toys.setting(model__name="mlp").network
    batch = Feed(toys.context(net), data, [], None).batch(Step(0, 0, torch.tensor([0, 2])))
    assert seen == [("cpu", "", True)]
    assert batch.number.device.type == "meta"  # a map may replace a constant
    assert batch.tree is data.constants["tree"]  # nothing of it was sent with the batch
    for tensor in (batch.x, batch.y, batch.soft, batch.twice, batch.noise, batch.more, batch.tree["a"]):
        assert tensor.device.type == "meta"


class Recorder:
    """A trainer that gives back what it gets, as new tensors here."""

    def __init__(self):
        self.seen = []

    def fit(self, ctx, model, loss, data, trains, plan, optim):
        self.seen += [model["a"].device.type, data.y.device.type]
        return Tree({"a": torch.ones(1)})

    def scan(self, ctx, carry, step, data, plan, width):
        tree, number = carry
        self.seen += [tree["a"].device.type, data.y.device.type]
        return tree.map(lambda t: torch.ones(1)), number


def test_a_trainer_gets_all_there_and_its_answers_come_home():
    inner = Recorder()
    trainer = PlacedTrainer(inner, Placement("meta"))
    tree, data = Tree({"a": torch.zeros(1)}), toys.data([1, 2])
    assert trainer.fit(None, tree, None, data, Part.ALL, Plan(range(1), None, 2), SGD(0.1))["a"].tolist() == [1]
    after, number = trainer.scan(None, (tree, 3), None, data, Plan(range(1), None, 2), 1)
    assert (after["a"].tolist(), number) == ([1], 3)
    assert inner.seen == ["meta"] * 4
    assert home((tree, 1.5)) == (tree, 1.5)


@pytest.mark.parametrize("name", ["fedavg", "fedper", "fedrep", "pfedkdh", "moon", "fedproto", "feddyn", "pfedme"])
def test_losses_mix_nothing_from_here_with_what_is_there(name, monkeypatch):
    def numbers(value):
        tensors, rebuild = placement.apart(value)
        return rebuild(iter([torch.zeros(t.shape, dtype=t.dtype) for t in tensors]))

    placed = []
    monkeypatch.setattr(placement, "home", lambda value: placed.append(value) or numbers(value))
    monkeypatch.setattr(torch.Tensor, "cpu", lambda self: numbers(self))
    monkeypatch.setattr(Log, "note", lambda self, terms, step: None)
    monkeypatch.setattr(Log, "check", lambda self, trained: None)
    stage = elsewhere(registry.load(name)())
    server = stage.algorithm.init_server(stage.server(0))
    task = Task(0, 0, stage.algorithm.broadcast(server, 0, stage.server(0)), None)
    with make_engine("serial", None, stage) as engine:
        list(engine.update([task], True))
    tensors = [t for value in placed for t in placement.apart(value)[0]]
    assert {t.device.type for t in tensors} == {"meta"}


def test_a_device_that_is_not_here(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InputError, match=r"^run\.device = 'cuda': there is no CUDA device here, or .*; take cpu$"):
        toys.experiment(run__device="cuda").run()


@pytest.mark.parametrize("engine", ["processes", "wire", "ray"])
def test_engines_whose_workers_share_no_device(engine):
    stage = elsewhere(None)
    with pytest.raises(InputError, match=rf"^run\.engine = '{engine}': .*; take serial, threads or vectorized$"):
        make_engine(engine, None, stage)
