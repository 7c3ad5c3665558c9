import os
import threading

import methods
import pytest
import torch
import toys

from manyheads.algorithms.fedper import FedPer
from manyheads.algorithms.pfedkdh import PFedKDH
from manyheads.engines import described, make_engine, one_thread, server_threads
from manyheads.engines.processes import Processes
from manyheads.engines.serial import Serial
from manyheads.engines.threads import Threads
from manyheads.engines.wire import Wire
from manyheads.errors import InputError, RunError
from manyheads.local.client import Task
from manyheads.models import winograd


@pytest.fixture(scope="module")
def reference():
    with pytest.MonkeyPatch.context() as patch:
        heard = toys.listen(patch)
        return toys.run(PFedKDH()), heard


SAME = ("threads", "processes", "wire")  # beside the reference; ray has a file of its own
ENGINES = ("serial", *SAME)


@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("engine", SAME)
def test_engines_give_the_bits_of_serial(engine, workers, reference, overheard):
    serial, heard = reference
    other = toys.run(PFedKDH(), run__engine=engine, run__workers=workers)
    assert other.server == serial.server
    assert other.private == serial.private
    assert overheard == heard
    assert toys.plain(other.rows) == toys.plain(serial.rows)


def test_engines_give_the_bits_of_serial_with_batchnorm():
    runs = [toys.run(FedPer(), model__name="resnet8", model__width=2, run__engine=e, run__workers=2) for e in ENGINES]
    for run in runs[1:]:
        assert run.server == runs[0].server
        assert run.private == runs[0].private
        assert toys.plain(run.rows) == toys.plain(runs[0].rows)


@pytest.mark.parametrize("engine", SAME)
def test_engines_give_the_bits_of_serial_with_convolutions_by_tiles(engine, monkeypatch):
    taken = []
    real = winograd.convolve
    monkeypatch.setattr(winograd, "convolve", lambda *args: taken.append(args[0].shape[2:]) or real(*args))
    values = {"model__kernel": 5, "model__padding": 4, "model__widths": [16, 32], "train__rounds": 2}
    serial = toys.run(PFedKDH(), cohorts=None, **values)
    assert set(taken) == {(6, 6)}  # ten results a side: two tiles
    taken.clear()
    other = toys.run(PFedKDH(), cohorts=None, run__engine=engine, run__workers=2, **values)
    assert taken
    assert other.server == serial.server
    assert other.private == serial.private
    assert toys.plain(other.rows) == toys.plain(serial.rows)


@pytest.mark.parametrize("engine", SAME)
def test_a_run_in_a_folder(engine, tmp_path, reference):
    serial, _ = reference
    with pytest.raises(KeyboardInterrupt):
        toys.experiment(PFedKDH(), run__engine=engine, run__workers=2).run(tmp_path, toys.raising(0))
    resumed = toys.resume(tmp_path, PFedKDH())
    assert resumed.server == serial.server
    assert resumed.private == serial.private
    assert toys.plain(resumed.rows) == toys.plain(serial.rows)


@pytest.mark.parametrize("engine", ENGINES)
def test_what_a_client_raises_comes_out(engine):
    with pytest.raises(RunError, match=r"^round 1, client 1: the upload's 'model/backbone\.fc\.bias' is not finite$"):
        toys.run(methods.Poisoned(), run__engine=engine, run__workers=2)


@pytest.mark.parametrize("engine", ENGINES)
def test_every_task_has_its_reply(engine):
    stage = toys.setting(FedPer())
    server = stage.algorithm.init_server(stage.server(0))
    clients = [0, 5, 1, 3]  # the first has the most to do
    tasks = [Task(c, 0, stage.algorithm.broadcast(server, c, stage.server(0)), None) for c in clients]
    with make_engine(engine, 2, stage) as running:
        assert sorted(reply.client for reply in running.update(tasks, False)) == sorted(clients)
        assert sorted(client for client, _ in running.evaluate(tasks, False)) == sorted(clients)


@pytest.mark.parametrize(("engine", "most"), [("serial", 1), ("threads", 5), ("processes", 4), ("wire", 4)])
@pytest.mark.parametrize("what", ["update", "evaluate"])
def test_few_tasks_are_alive_at_once(engine, most, what):
    """A thread has one at work and one waiting, a process one at work; some are done and not yet taken."""
    stage = toys.setting(FedPer(), model__name="mlp", model__hidden=[4], train__epochs=1)
    server = stage.algorithm.init_server(stage.server(0))
    made, done, alive = [], [], []

    def tasks():
        for number in range(30):
            client = number % 6
            made.append(client)
            alive.append(len(made) - len(done))
            yield Task(client, 0, stage.algorithm.broadcast(server, client, stage.server(0)), None)

    with make_engine(engine, 2, stage) as running:
        for reply in getattr(running, what)(tasks(), False):
            done.append(reply.client if what == "update" else reply[0])
    assert sorted(done) == sorted(made) == sorted(number % 6 for number in range(30))
    assert max(alive) <= most


def test_workers_have_one_thread_each_whatever_the_process_has():
    found = []

    class Watched(FedPer):
        def train(self, model, received, private, data, ctx):
            found.append((threading.current_thread().name.partition("_")[0], torch.get_num_threads()))
            return model

    stage = toys.setting(Watched(), model__name="mlp")
    server = stage.algorithm.init_server(stage.server(0))
    tasks = [Task(c, 0, stage.algorithm.broadcast(server, c, stage.server(0)), None) for c in range(6)]
    torch.set_num_threads(2)
    try:
        with make_engine("threads", 2, stage) as engine:
            assert len(list(engine.update(tasks, False))) == 6
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    assert found == [("client", 1)] * 6


def test_which_engine_is_made(monkeypatch):
    stage = toys.setting(model__name="mlp")
    monkeypatch.setattr("manyheads.engines.base.cores", lambda: 3)
    for name, workers, kind in (
        ("serial", 4, Serial),
        ("auto", None, Threads),
        ("auto", 1, Serial),
        ("threads", 1, Threads),
        ("processes", 1, Processes),
        ("wire", 1, Wire),
    ):
        with make_engine(name, workers, stage) as engine:
            assert type(engine) is kind
    assert described("auto", None) == described("threads", None) == "threads, 3 at a time"
    assert described("auto", 1) == described("serial", 4) == "serial"
    assert described("processes", 2) == "processes, 2 at a time"
    assert [server_threads(name, None) for name in ("auto", "processes", "ray", "serial")] == [3, 3, 3, 1]
    assert [server_threads("threads", n) for n in (1, 2, 9)] == [1, 2, 3]
    assert described("ray", None) == "ray"  # the cluster decides
    with pytest.raises(InputError, match=r"run\.engine: unknown engine 'thread'; did you mean 'threads'\?"):
        make_engine("thread", None, stage)


def test_one_thread_is_given_back():
    torch.set_num_threads(2)
    try:
        with one_thread():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)


def test_clients_stop_at_their_next_step_when_something_went_wrong():
    setting = toys.setting(FedPer(), train__epochs=100_000)
    ctx = setting.server(0)
    server = setting.algorithm.init_server(ctx)
    tasks = [Task(client, 0, setting.algorithm.broadcast(server, client, ctx), None) for client in (0, 1)]

    def fail() -> None:
        with Threads(setting, 2) as engine:
            engine.update(tasks, False)
            raise KeyError  # leaving the block waits for the workers: it ends only because they stop

    with pytest.raises(KeyError):
        fail()


def test_an_engine_that_does_not_fit_is_refused_before_anything_is_stored(tmp_path, monkeypatch):
    bad = {"model__name": "resnet8", "model__width": 2, "run__engine": "vectorized"}
    with pytest.raises(InputError, match="BatchNorm"):
        toys.run(FedPer(), folder=tmp_path / "run", **bad)
    monkeypatch.delattr(os, "fork")
    for engine in ("processes", "wire"):
        with pytest.raises(InputError, match="cannot fork processes; take 'threads'"):
            toys.run(FedPer(), folder=tmp_path / "run", run__engine=engine)
    assert not (tmp_path / "run").exists()


def test_forks_are_refused_where_torch_sees_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(InputError, match="CUDA_VISIBLE_DEVICES="):
        toys.run(FedPer(), run__engine="processes")
