"""Run as a program by test_crash.py: kills a process that commits in a loop, and checks what it left, again and again.

One program for all kills, because importing torch takes longer than everything else.
"""

import importlib.util
import os
import random
import signal
import sys
import time
from pathlib import Path

from manyheads.errors import InputError
from manyheads.storage.run_folder import RunFolder

spec = importlib.util.spec_from_file_location("toy", Path(__file__).with_name("conftest.py"))
assert spec is not None
assert spec.loader is not None
toy_module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(toy_module)
toy = toy_module.Toy()


def child(path: Path, ready: int) -> None:
    folder = RunFolder.open(path)
    os.write(ready, b".")
    restored = folder.restore()
    toy.play(folder, 10**6, first=restored.position + 1 if restored else 0)


def kill_at_random(path: Path, seconds: float) -> None:
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            child(path, writer)
        finally:
            os._exit(1)
    os.read(reader, 1)
    time.sleep(seconds)
    os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status), f"the child ended by itself: {status}"
    os.close(reader)
    os.close(writer)


def check_that_workers_hold_no_lock(path: Path) -> None:
    folder = RunFolder.open(path)
    reader, writer = os.pipe()
    worker = os.fork()
    if worker == 0:
        os.write(writer, b".")
        signal.pause()
    os.read(reader, 1)
    try:
        try:
            RunFolder.open(path)
        except InputError:
            pass
        else:
            raise AssertionError("the lock was lost by forking")
        folder.close()
        RunFolder.open(path).close()
    finally:
        os.kill(worker, signal.SIGKILL)
        os.waitpid(worker, 0)


def main(path: Path, kills: int) -> None:
    toy.create(path).close()
    moments = random.Random(0)
    reached = -1
    for _ in range(kills):
        kill_at_random(path, moments.uniform(0, 0.3))
        state, warnings = toy.restored(path)
        assert warnings == []
        if state is not None:
            assert state == toy.expected(state["position"])
            assert state["position"] >= reached
            reached = state["position"]
    check_that_workers_hold_no_lock(path)
    toy.finish(path, reached + 3)
    print(reached)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
