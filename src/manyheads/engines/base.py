"""What an engine is, and which one ``auto`` picks."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol, cast

import torch

from manyheads.errors import InputError, unknown
from manyheads.local.allocator import keep_memory
from manyheads.local.client import Correct, Reply, Task
from manyheads.local.setting import Setting

ENGINES = ("auto", "serial", "threads", "processes", "wire", "ray", "vectorized")

Say = Callable[[str], None]


class Engine(Protocol):
    """Runs the client room of one stage. Replies come in any order: as clients finish."""

    def update(self, tasks: Iterable[Task], test: bool, /) -> Iterator[Reply]:
        """Runs a round at each client."""

    def evaluate(self, tasks: Iterable[Task], adapt: bool, /) -> Iterator[tuple[int, Correct]]:
        """Tests each client's personal models."""


class MakesEngine(Protocol):
    """The class of an engine; each stands in the module of its name, as ``engines.serial.Serial``."""

    def __call__(self, setting: Setting, workers: int | None, say: Say, /) -> AbstractContextManager[Engine]:
        """An engine for one stage; ``workers`` is None for as many as there are processors.

        ``say`` takes what a person should read, a line at a time.
        """

    def check(self, setting: Setting, /) -> None:
        """Raises InputError where the engine cannot run here, or with this network."""


def make_engine(
    name: str, workers: int | None, setting: Setting, say: Say = lambda line: None
) -> AbstractContextManager[Engine]:
    """The engine called ``name``; ``auto`` takes a thread for each core, or none where there is one core.

    Raises:
        InputError: there is no such engine, or it cannot run here or with this network.
    """
    check_engine(name, workers, setting)
    return _kind(name, workers)(setting, workers, say)


def check_engine(name: str, workers: int | None, setting: Setting) -> None:
    """Raises InputError where ``make_engine`` would."""
    chosen = _picked(name, workers)
    if setting.placement and chosen in _APART:
        raise InputError(f"run.engine = {chosen!r}: its workers share no device; take serial, threads or vectorized")
    _kind(name, workers).check(setting)


def described(name: str, workers: int | None) -> str:
    """What ``make_engine`` is going to make, in words: ``"threads, 2 at a time"``.

    Raises:
        InputError: there is no such engine.
    """
    chosen = _picked(name, workers)
    if chosen == "serial":
        return chosen
    return f"{chosen}, {workers or cores()} at a time" if workers or chosen in _LOCAL else chosen


def server_threads(name: str, workers: int | None) -> int:
    """How many threads the server may use while the clients wait: ``workers``, but not more than there are cores."""
    return 1 if _picked(name, workers) == "serial" else min(workers or cores(), cores())


_LOCAL = ("threads", "processes", "wire")
_APART = ("processes", "wire", "ray")  # these have memory of their own


def _picked(name: str, workers: int | None) -> str:
    if name not in ENGINES:
        raise InputError(f"run.engine: {unknown('engine', name, ENGINES)}")
    if name != "auto":
        return name
    return "serial" if (workers or cores()) == 1 else "threads"


def _kind(name: str, workers: int | None) -> MakesEngine:
    chosen = _picked(name, workers)
    return cast(MakesEngine, getattr(importlib.import_module(f"manyheads.engines.{chosen}"), chosen.capitalize()))


def cores() -> int:
    """The processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread inside each torch operation: the order of sums depends on nothing, and workers do not collide.

    Memory is kept, by which training is faster; that outlasts the block.
    """
    keep_memory()
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
