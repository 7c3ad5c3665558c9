"""The stacked engine against the serial one: every method on ``digits``, and what happens around training."""

import re
import threading
from dataclasses import dataclass, replace

import methods
import pytest
import torch
import toys
from algorithms import test_every_method as every

from manyheads.algorithms import registry
from manyheads.algorithms.fedavg import FedAvg
from manyheads.algorithms.fedper import FedPer
from manyheads.algorithms.fedprox import FedProx
from manyheads.algorithms.pfedkdh import PFedKDH
from manyheads.contract import Upload
from manyheads.engines import make_engine, vectorized
from manyheads.errors import InputError, RunError
from manyheads.events import Warned
from manyheads.local.client import Task
from manyheads.local.placement import Placement

PAPERS = ("fedavg", "fedper", "fedrep", "pfedkdh", "fedecouple")
FAST = (*PAPERS, "pfedme")
ALONE = {  # what is trained one client after the other, and why
    "fedfed": ["Distilling: .*: generator.encoder.1 is a BatchNorm2d"],
}


@pytest.fixture
def stacked(monkeypatch):
    """How many clients each stacked ``fit`` and ``scan`` has had."""
    found = []

    def counted(real):
        def run(network, requests, stopped):
            answers = real(network, requests, stopped)
            found.append(len(requests))
            return answers

        return run

    for name in ("fit", "scan"):
        monkeypatch.setattr(vectorized, name, counted(getattr(vectorized, name)))
    return found


def far(a, b):
    """The largest difference of any tensor, relative to its largest number."""
    assert a.keys() == b.keys()
    worst = 0.0
    for name, tensor in a.items():
        assert tensor.shape == b[name].shape
        if tensor.numel():
            apart, size = (tensor.double() - b[name].double()).abs().max().item(), tensor.double().abs().max().item()
            worst = max(worst, apart / size if apart else 0.0)
    return worst


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in FAST else pytest.mark.slow) for name in registry.names()]
)
def test_every_method_is_what_it_is_on_serial(name, stacked):
    runs, said = [], []
    for engine in ("serial", "vectorized"):
        with pytest.MonkeyPatch.context() as patch:
            uploads = toys.listen(patch)
            run = every.experiment(name, engine)
            run.config = run.config.with_values({"run.workers": 8, "train.rounds": 2 if name in FAST else 3})
            runs.append((run.run(on_event=said.append), uploads))
    (serial, sent), (other, received) = runs
    assert sent.keys() == received.keys()
    assert serial.private.keys() == other.private.keys()
    worst = [far(serial.server.tensors(), other.server.tensors())]
    worst += [far(serial.private[client].tensors(), other.private[client].tensors()) for client in serial.private]
    worst += [far(*(Upload.from_bytes(heard[key]).tensors() for heard in (sent, received))) for key in sent]
    assert max(worst) <= (1e-5 if name in PAPERS else 1e-4)
    for row, same in zip(serial.rows, other.rows, strict=True):
        assert row["loss"] == pytest.approx(same["loss"], rel=1e-4, abs=1e-6)
    spoken = [event.message for event in said if isinstance(event, Warned) and "one after the other" in event.message]
    assert len(spoken) == len(ALONE.get(name, []))
    for text, wanted in zip(spoken, ALONE.get(name, []), strict=True):
        assert re.match(wanted, text), text
    assert max(stacked) > 1  # FedFed ends as FedAvg


@dataclass(frozen=True)
class Peeking(FedAvg):
    """Its loss looks at a number."""

    def loss(self, m, b):
        terms = super().loss(m, b)
        return terms if terms["ce"].item() > 0 else {}


@dataclass(frozen=True)
class Sick(FedPer):
    """One client's loss is not finite in one round."""

    client: int = 1
    at: int = 1

    def prepare(self, model, received, private, data, ctx):
        sick = (ctx.party, ctx.round) == (self.client, self.at)
        return data.given(bad=torch.tensor(float("nan") if sick else 0.0))

    def loss(self, m, b):
        return {**super().loss(m, b), "bad": b.bad * m.params["head.bias"].sum()}


@dataclass(frozen=True)
class Raising(FedPer):
    """What is wrong with it is wrong wherever it runs."""

    def loss(self, m, b):
        raise KeyError


def both(algorithm, **values):
    return [toys.run(algorithm, run__engine=engine, **values) for engine in ("serial", "vectorized")]


def test_a_loss_that_looks_at_numbers_is_trained_one_after_the_other(stacked):
    said = []
    serial = toys.run(Peeking())
    other = toys.experiment(Peeking(), run__engine="vectorized").run(on_event=said.append)
    assert serial.server == other.server
    assert toys.plain(serial.rows) == toys.plain(other.rows)
    [line] = [event.message for event in said if isinstance(event, Warned)]  # one for six phases
    assert re.match("Peeking: clients are trained one after the other: RuntimeError: vmap: .*item.*control flow", line)
    assert "\n" not in line
    assert stacked == []


def test_a_loss_that_is_not_finite_stops_the_run_as_on_serial():
    errors = []
    for engine in ("serial", "vectorized"):
        with pytest.raises(RunError) as error:
            toys.run(Sick(), run__engine=engine)
        errors.append(str(error.value))
    assert errors[0] == errors[1]
    assert errors[0].startswith("round 1, client 1: loss term 'bad' is nan in epoch 0, step 0")


def test_a_loss_that_is_not_finite_drops_its_client_only(stacked):
    serial, other = both(Sick(), run__non_finite="drop")
    assert [row.get("dropped") for row in serial.rows] == [row.get("dropped") for row in other.rows]
    assert [list(row.get("dropped", {})) for row in other.rows] == [[], [], ["1"], []]
    assert far(serial.server.tensors(), other.server.tensors()) < 1e-5
    assert max(stacked) == 3


@pytest.mark.parametrize(
    "values",
    [
        {"train__momentum": 0.9, "train__weight_decay": 0.01, "train__clip": 0.5},
        {"train__batch": 64},  # a step an epoch, all of other sizes
        {"run__workers": 2},
    ],
)
def test_other_settings(values, stacked):
    serial, other = both(PFedKDH(), **values)
    assert far(serial.server.tensors(), other.server.tensors()) < 1e-5
    for client, kept in serial.private.items():
        assert far(kept.tensors(), other.private[client].tensors()) < 1e-5
    assert toys.metrics(serial, "personal", "post_adapt") == toys.metrics(other, "personal", "post_adapt")
    assert max(stacked) == values.get("run__workers", 6)  # all six are adapted at once for the test


@pytest.mark.parametrize(
    "algorithm",
    [
        methods.Noisy(),
        methods.PartSteps(),
        methods.Adapter(),
        methods.WideAvg(),
        methods.ScanAvg(),
        methods.HeadFirst(),
    ],
)
def test_what_no_shipped_method_uses(algorithm, stacked):
    serial, other = both(algorithm)
    assert far(serial.server.tensors(), other.server.tensors()) < 1e-5
    assert max(stacked) == 3


def test_one_client_at_a_time_has_the_bits_of_serial(stacked):
    serial, other = both(PFedKDH(), run__workers=1)
    assert serial.server == other.server
    assert serial.private == other.private
    assert toys.plain(serial.rows) == toys.plain(other.rows)
    assert stacked == []


def test_batchnorm_is_refused_by_name():
    stage = toys.setting(FedPer(), model__name="resnet8", model__width=2)
    with pytest.raises(InputError) as error:
        make_engine("vectorized", None, stage)
    assert str(error.value) == (
        "run.engine = 'vectorized': backbone.bn1 is a BatchNorm2d, whose statistics padded batches would spoil; "
        "take serial, threads, processes, wire or ray"
    )


def tasks_of(stage, clients):
    server = stage.algorithm.init_server(stage.server(0))
    for client in clients:
        yield Task(client, 0, stage.algorithm.broadcast(server, client, stage.server(0)), None)


@pytest.mark.parametrize("what", ["update", "evaluate"])
def test_few_tasks_are_alive_at_once(what):
    stage = toys.setting(FedPer(), model__name="mlp", model__hidden=[4], train__epochs=1)
    made, done, alive = [], [], []

    def tasks():
        for task in tasks_of(stage, [number % 6 for number in range(20)]):
            made.append(task.client)
            alive.append(len(made) - len(done))
            yield task

    with make_engine("vectorized", 4, stage) as engine:
        for reply in getattr(engine, what)(tasks(), False):
            done.append(reply.client if what == "update" else reply[0])
    assert sorted(done) == sorted(made)
    assert len(made) == 20
    assert max(alive) <= 5


@dataclass(frozen=True)
class Shaken(FedProx):
    """Its images get noise at every step."""

    prox_weight: float = 0.5

    def prepare(self, model, received, private, data, ctx):
        data = super().prepare(model, received, private, data, ctx)
        return data.map(lambda b, rng: b.replace(x=b.x + 0.1 * torch.rand(b.x.shape, generator=rng)))


def test_maps_and_constants_are_stacked_on_a_device_too(stacked):
    stage, said, uploads = toys.setting(Shaken(), model__name="mlp", model__hidden=[4]), [], []
    for name, placement in (("serial", None), ("vectorized", Placement("cpu"))):
        with make_engine(name, 3, replace(stage, placement=placement), said.append) as engine:
            replies = engine.update(tasks_of(stage, [0, 1, 2]), False)
            uploads.append({reply.client: Upload.from_bytes(reply.upload).tensors() for reply in replies})
    assert said == []
    assert stacked == [3]
    for client in range(3):
        assert far(*(found[client] for found in uploads)) < 1e-5


def waiting():
    return [thread for thread in threading.enumerate() if thread.name == "client" and thread.is_alive()]


@pytest.mark.parametrize("error", [KeyError, KeyboardInterrupt])
def test_what_goes_wrong_in_the_middle_leaves_no_thread_behind(error, monkeypatch):
    def broken(network, requests, stopped):
        assert len(waiting()) == 3
        raise error

    monkeypatch.setattr(vectorized, "fit", broken)
    stage = toys.setting(Raising(), train__epochs=1)
    with pytest.raises(error), make_engine("vectorized", None, stage) as engine:
        list(engine.update(tasks_of(stage, [0, 1, 2]), False))
    for thread in waiting():
        thread.join(5)
    assert waiting() == []


def test_a_reply_that_is_not_taken_leaves_no_thread_behind():
    stage = toys.setting(FedPer(), train__epochs=1)
    with make_engine("vectorized", 3, stage) as engine:
        next(engine.update(tasks_of(stage, [0, 1, 2, 3]), False))
    for thread in waiting():
        thread.join(5)
    assert waiting() == []
