"""Workers that are lost: named, replaced, and their clients tried again."""

import os
import signal
from dataclasses import dataclass
from pathlib import Path

import methods
import pytest
import torch
import toys

from manyheads.algorithms.fedper import FedPer
from manyheads.engines import make_engine
from manyheads.engines.forks import Forks, fork
from manyheads.engines.pool import LostError
from manyheads.engines.processes import Processes
from manyheads.errors import RunError
from manyheads.events import Warned
from manyheads.local.client import Task

FORKED = ("processes", "wire")
forked = pytest.mark.parametrize("engine", FORKED)


@dataclass(frozen=True)
class Fatal(FedPer):
    """FedPer, one of whose clients ends its process while a file says that it may."""

    lives: str = ""
    victim: int = 0
    how: int = int(signal.SIGKILL)

    def train(self, model, received, private, data, ctx):
        left = Path(self.lives)
        if ctx.party == self.victim and (count := int(left.read_text())):
            left.write_text(str(count - 1))
            if self.how < 0:
                torch.empty(10**15)  # torch says that it cannot in a RuntimeError
            os.kill(os.getpid(), self.how)
        return super().train(model, received, private, data, ctx)


@pytest.fixture
def fatal(tmp_path):
    """A method whose client 3, which takes part in rounds 1 and 2, loses its process so many times."""

    def make(times, how=signal.SIGKILL):
        (tmp_path / "lives").write_text(str(times))
        return Fatal(str(tmp_path / "lives"), 3, int(how))

    return make


def told(algorithm, **values):
    """The result of a run, and what it warned of."""
    lines = []
    result = toys.experiment(algorithm, **values).run(
        on_event=lambda event: lines.append(event.message) if isinstance(event, Warned) else None
    )
    return result, lines


@forked
@pytest.mark.parametrize(
    ("how", "words"),
    [
        (signal.SIGKILL, "was killed by SIGKILL, perhaps for want of memory"),
        (signal.SIGTERM, "was killed by SIGTERM"),
        (-1, "ran out of memory"),
    ],
)
def test_a_client_whose_worker_is_lost_is_tried_again(engine, fatal, how, words):
    result, lines = told(fatal(1, how), run__engine=engine, run__workers=2)
    calm = toys.run(fatal(0), run__engine="serial")
    assert result.server == calm.server
    assert result.private == calm.private
    assert toys.plain(result.rows) == toys.plain(calm.rows)
    [line] = lines
    assert line.startswith("client 3: worker ")
    assert line.endswith(f" {words}; another worker tries again")


@forked
def test_a_client_whose_workers_are_lost_twice_stops_the_run(engine, fatal):
    lost = "worker [0-9]+ was killed by SIGKILL, perhaps for want of memory"
    with pytest.raises(RunError, match=rf"^client 3: {lost} and {lost}$"):
        toys.run(fatal(2), run__engine=engine, run__workers=2)


def test_or_is_left_out_of_the_round(fatal):
    result, lines = told(fatal(2), run__engine="processes", run__workers=2, run__non_finite="drop")
    [row] = [row for row in result.rows if row.get("dropped")]
    assert list(row["dropped"]) == ["3"]
    assert row["dropped"]["3"].startswith("client 3: worker ")
    assert row["round"] == 1
    assert "3" not in row["bytes"]["up"]
    assert 3 in result.private  # from its next round
    assert sum("client 3 is left out of the round" in line for line in lines) == 1


def test_one_worker_is_enough_to_go_on(fatal):
    result, lines = told(fatal(1), run__engine="processes", run__workers=1)
    assert len(lines) == 1
    assert result.server == toys.run(fatal(0)).server


def tasks(stage, clients):
    server = stage.algorithm.init_server(stage.server(0))
    return [Task(c, 0, stage.algorithm.broadcast(server, c, stage.server(0)), None) for c in clients]


def test_workers_lost_between_rounds_cost_nothing():
    stage = toys.setting(FedPer())
    said = []
    with make_engine("processes", 2, stage, said.append) as engine:
        assert isinstance(engine, Processes)
        before = {reply.client: reply for reply in engine.update(tasks(stage, [0, 3]), True)}
        for worker in engine._pool._idle:
            os.kill(worker.pid, signal.SIGKILL)
        after = {reply.client: reply for reply in engine.update(tasks(stage, [0, 3]), True)}
    assert before == after
    assert len(said) == 2


@pytest.mark.parametrize(("length", "part"), [(0, b""), (1000, b""), (1000, b"a half"), (1000, b"x" * 999)])
def test_an_answer_that_breaks_off_is_none(length, part):
    """The worker ends in the middle of a message, whose length it has said."""

    def breaks_off(pipe):
        os.write(pipe.fileno(), length.to_bytes(4, "big")[: 4 if length else 2] + part)
        os._exit(3)

    workers = Forks(lambda: lambda message: message)
    worker = fork(breaks_off)
    with pytest.raises(LostError, match=f"^worker {worker.pid} ended with status 3$"):
        workers.receive(worker, worker.pipe)


@forked
def test_no_process_is_left_behind(engine):
    stage = toys.setting(FedPer(), train__epochs=100_000)

    def fail():
        with make_engine(engine, 2, stage) as running:
            workers.extend(worker.pid for worker in running._pool._idle)
            running.update(tasks(stage, [0, 3]), False)
            raise KeyError

    workers = []
    with pytest.raises(KeyError):
        fail()
    assert len(workers) == 2
    for pid in workers:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@forked
def test_a_mistake_in_a_method_comes_with_its_traceback(engine):
    with pytest.raises(RuntimeError, match=r"^client \d: KeyError: 'absent'") as raised:
        toys.run(methods.Wrong(), run__engine=engine, run__workers=2)
    assert 'return {}["absent"]' in raised.value.__notes__[0]


def test_each_client_has_a_process_of_its_own_on_the_wire(tmp_path):
    """A class attribute stands for all that a client could leave behind: the next one finds it on a worker only."""

    class Leaves(FedPer):
        found = 0

        def train(self, model, received, private, data, ctx):
            type(self).found += 1
            ctx.note("found", type(self).found)
            ctx.note("process", os.getpid())
            return model

    for engine in FORKED:
        notes = [row["notes"] for row in toys.run(Leaves(), run__engine=engine, run__workers=1).rows if "notes" in row]
        found = max(count for note in notes for count in note["found"].values())
        assert found == (1 if engine == "wire" else sum(map(len, toys.COHORTS)))
        processes = [pid for note in notes for pid in note["process"].values()]
        assert len(set(processes)) == (len(processes) if engine == "wire" else 1)
        assert os.getpid() not in processes
