"""Run as a program by test_interruption.py: kills runs, and kills what resumes them, and finishes them.

One program for all kills, because importing torch takes longer than a run. It computes nothing itself: every run is a
forked process of its own, killed by SIGKILL.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from manyheads.config import Config
from manyheads.data.dataset import Dataset
from manyheads.events import Event, Warned
from manyheads.experiment import Experiment
from manyheads.prepare import load_dataset


def refuse_warnings(event: Event) -> None:
    """A kill never damages a checkpoint."""
    assert not isinstance(event, Warned), event


def go_on(folder: Path, config: Config, dataset: Dataset) -> None:
    """What a person does after a kill."""
    if (folder / "config.toml").exists():
        Experiment.resume(folder, dataset=dataset, on_event=refuse_warnings)
    else:
        Experiment(config, dataset=dataset).run(folder, refuse_warnings)


def run(work: Callable[[], None], kill_after: float | None = None) -> tuple[bool, float]:
    """Do the work in a process, and kill it after so many seconds: whether that came before its end, and its age."""
    start = time.monotonic()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    if kill_after is not None:
        while time.monotonic() - start < kill_after and not os.waitid(
            os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT
        ):
            time.sleep(0.001)
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status) or status == 0, f"the run ended with status {status}"
    return os.WIFSIGNALED(status), time.monotonic() - start


def ended(pid: int) -> bool:
    """Whether the process ended by itself; it stays to be waited for."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def position(folder: Path) -> int:
    """The newest checkpoint; -1 without one, -2 without a config."""
    if not (folder / "config.toml").exists():
        return -2
    return max((int(file.stem) for file in (folder / "checkpoints").glob("*.json")), default=-1)


def main(config_file: Path, root: Path, kills: int) -> None:
    config = Config.load(config_file)
    dataset = load_dataset(config)
    run(partial(go_on, root / "first", config, dataset))  # reads files that the others find in memory
    _, duration = run(partial(go_on, root / "whole", config, dataset))
    report = []
    for number in range(kills):
        share = (number + 0.5) / kills
        expected = duration
        for attempt in range(10):
            folder = root / f"{number}-{attempt}"
            work = partial(go_on, folder, config, dataset)
            killed, age = run(work, share * expected)
            if killed:
                break
            expected = age  # the machine is faster now than when it was measured
        reached = [position(folder)]
        again, _ = run(work, (1 - share) * expected * (0.1 + 0.2 * (number % 5)))
        if again:
            reached.append(position(folder))
        run(work)
        report.append({"folder": str(folder), "killed": killed, "again": again, "reached": reached})
    print(json.dumps(report))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
