"""Worker processes of a real command: killed at random, left alone by Ctrl-C or by the death of the command."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from manyheads import Experiment

KILLS = 20
ROUNDS = KILLS + 2
pytestmark = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds worker processes in /proc")


def children(pid: int) -> list[int]:
    """The processes that a process has started and that still run."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.fixture
def engine(request) -> str:
    """What runs the clients."""
    return getattr(request, "param", "processes")


@pytest.fixture
def running(engine, tmp_path, config_text, environment) -> Iterator[subprocess.Popen[str]]:
    """A command whose clients run in worker processes, in a process group of its own; it is in its first rounds."""
    (tmp_path / "run.toml").write_text(config_text.replace("rounds = 6", f"rounds = {ROUNDS}"))
    line = [sys.executable, "-m", "manyheads", "run", "run.toml", "--folder", "run", "--set", f"run.engine={engine}"]
    line += ["--set", "train.epochs=150"]  # a round takes longer than it takes to read its line and to kill
    heard = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs, and theirs, ignore it
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    with subprocess.Popen(line, cwd=tmp_path, env=environment, **pipes, text=True, start_new_session=True) as process:
        signal.signal(signal.SIGINT, heard)
        yield process
        process.kill()


def said(process: subprocess.Popen[str]) -> str:
    """What else the command says until it ends."""
    assert process.stderr is not None
    return process.stderr.read()


def rounds(process: subprocess.Popen[str]) -> Iterator[str]:
    """What the command says, a line for every round, as it says it."""
    assert process.stderr is not None
    for line in process.stderr:
        if "round " in line and "tries again" not in line:
            yield line


@pytest.mark.slow
def test_a_random_worker_killed_twenty_times(running, tmp_path, bits):
    draw, killed, lines = random.Random(0), set(), []
    for _, line in zip(range(KILLS), rounds(running), strict=False):  # at most one a round: a client is tried twice
        lines.append(line)
        time.sleep(draw.random() / 10)
        victim = draw.choice(children(running.pid))
        os.kill(victim, signal.SIGKILL)
        killed.add(victim)
    lines.append(said(running))
    assert running.wait() == 0, "".join(lines)
    assert len(killed) == KILLS
    whole = Experiment.load(tmp_path / "run")[0].config
    Experiment(whole).run(tmp_path / "whole")
    assert bits(tmp_path / "run") == bits(tmp_path / "whole")


@pytest.mark.parametrize("engine", ["processes", "wire"], indirect=True)
def test_workers_end_with_the_command_and_hold_nothing(running, tmp_path):
    next(rounds(running))
    workers = children(running.pid)
    assert len(workers) == 2
    workers += [child for worker in workers for child in children(worker)]
    running.kill()
    running.wait()
    _, stored = Experiment.load(tmp_path / "run")  # needs the run's lock, which ends with the last process that has it
    assert stored.rows
    deadline = time.monotonic() + 60
    while left := [worker for worker in workers if alive(worker)]:
        assert time.monotonic() < deadline, left
        time.sleep(0.1)


def test_ctrl_c_reaches_the_command_only(running, tmp_path):
    next(rounds(running))
    workers = children(running.pid)
    os.killpg(running.pid, signal.SIGINT)
    err = said(running)
    assert running.wait() == 130, err
    assert err.splitlines()[-1] == "stopped; go on with: manyheads resume run"
    assert "Traceback" not in err
    assert not [worker for worker in workers if alive(worker)]
