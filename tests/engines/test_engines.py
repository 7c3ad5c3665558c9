import methods
import pytest
import torch
import toys

from manyheads.algorithms.fedper import FedPer
from manyheads.algorithms.pfedkdh import PFedKDH
from manyheads.engines import make_engine, one_thread
from manyheads.engines.serial import Serial
from manyheads.engines.threads import Threads
from manyheads.errors import InputError, RunError
from manyheads.local.client import Task


@pytest.fixture(scope="module")
def reference():
    with pytest.MonkeyPatch.context() as patch:
        heard = toys.listen(patch)
        return toys.run(PFedKDH()), heard


@pytest.mark.parametrize("workers", [2, 3])
def test_threads_give_the_bits_of_serial(workers, reference, overheard):
    serial, heard = reference
    threads = toys.run(PFedKDH(), run__engine="threads", run__workers=workers)
    assert threads.server == serial.server
    assert threads.private == serial.private
    assert overheard == heard
    assert toys.plain(threads.rows) == toys.plain(serial.rows)


def test_threads_give_the_bits_of_serial_with_batchnorm():
    runs = [toys.run(FedPer(), model__name="resnet8", model__width=2, run__engine=e, run__workers=2) for e in ENGINES]
    assert runs[0].server == runs[1].server
    assert runs[0].private == runs[1].private
    assert toys.plain(runs[0].rows) == toys.plain(runs[1].rows)


ENGINES = ("serial", "threads")


def test_threads_of_a_run_in_a_folder(tmp_path, reference):
    serial, _ = reference
    with pytest.raises(KeyboardInterrupt):
        toys.experiment(PFedKDH(), run__engine="threads", run__workers=2).run(tmp_path, toys.raising(0))
    resumed = toys.resume(tmp_path, PFedKDH())
    assert resumed.server == serial.server
    assert resumed.private == serial.private
    assert toys.plain(resumed.rows) == toys.plain(serial.rows)


@pytest.mark.parametrize("engine", ENGINES)
def test_what_a_client_raises_comes_out(engine):
    with pytest.raises(RunError, match=r"round 1, client 1: 'model/backbone\.fc\.bias' of the upload is not finite"):
        toys.run(methods.Poisoned(), run__engine=engine, run__workers=2)


def test_replies_come_in_the_order_of_the_tasks():
    stage = toys.setting(FedPer())
    server = stage.algorithm.init_server(stage.server(0))
    order = [0, 5, 1, 3]  # the first has the most to do
    tasks = [Task(c, 0, stage.algorithm.broadcast(server, c, stage.server(0)), None) for c in order]
    for name in ENGINES:
        with make_engine(name, 2, stage) as engine:
            assert [reply.client for reply in engine.update(tasks, False)] == order
            assert [client for client, _ in engine.evaluate(tasks, False)] == order


def test_which_engine_is_made(monkeypatch):
    stage = toys.setting(model__name="mlp")
    monkeypatch.setattr("manyheads.engines.base.cores", lambda: 3)
    for name, workers, kind in (
        ("serial", 4, Serial),
        ("auto", None, Threads),
        ("auto", 1, Serial),
        ("threads", 2, Threads),
    ):
        with make_engine(name, workers, stage) as engine:
            assert type(engine) is kind
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
