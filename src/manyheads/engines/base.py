"""What an engine is, and which one ``auto`` picks."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

import torch

from manyheads.errors import InputError, unknown
from manyheads.local.client import Correct, Reply, Task
from manyheads.local.setting import Setting

ENGINES = ("auto", "serial", "threads")


class Engine(Protocol):
    """Runs the client room of one stage. Replies come in the order of the tasks, whichever client finishes first."""

    def update(self, tasks: Iterable[Task], test: bool, /) -> Iterator[Reply]:
        """Runs a round at each client."""

    def evaluate(self, tasks: Iterable[Task], adapt: bool, /) -> Iterator[tuple[int, Correct]]:
        """Tests each client's personal models."""


def make_engine(name: str, workers: int | None, setting: Setting) -> AbstractContextManager[Engine]:
    """The engine called ``name``; ``auto`` takes a thread for each core.

    Raises:
        InputError: there is no such engine.
    """
    from manyheads.engines.serial import Serial
    from manyheads.engines.threads import Threads

    if name not in ENGINES:
        raise InputError(f"run.engine: {unknown('engine', name, ENGINES)}")
    workers = workers or cores()
    if name == "serial" or workers == 1:
        return Serial(setting)
    return Threads(setting, workers)


def cores() -> int:
    """The processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread inside each torch operation: the order of sums depends on nothing, and workers do not collide."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
