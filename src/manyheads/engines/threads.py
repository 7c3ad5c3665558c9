"""A pool of threads in this process. The work is done inside torch, which releases the interpreter's lock."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import replace
from itertools import islice
from types import TracebackType
from typing import TypeVar

import torch

from manyheads.engines.base import Say, cores
from manyheads.local.client import ClientRoom, Correct, Reply, Task
from manyheads.local.setting import Setting

T = TypeVar("T")


class Threads:
    """Clients side by side, each on one thread with a room of its own."""

    def __init__(self, setting: Setting, workers: int | None = None, say: Say = lambda line: None) -> None:
        self._stop = threading.Event()
        self._setting, self._workers = replace(setting, stopped=self._stop.is_set), workers or cores()
        self._own = threading.local()
        made = (self._own, self._setting)  # a method of this object would close a circle, in which nothing is freed
        self._pool = ThreadPoolExecutor(self._workers, thread_name_prefix="client", initializer=_start, initargs=made)

    @staticmethod
    def check(setting: Setting) -> None:
        """It runs anywhere."""

    def __enter__(self) -> Threads:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Drops clients that wait; those that run finish, or stop at their next step where something went wrong."""
        if kind is not None:
            self._stop.set()
        self._pool.shutdown(cancel_futures=True)

    def update(self, tasks: Iterable[Task], test: bool) -> Iterator[Reply]:
        """Runs a round at each client."""
        return self._map(lambda task: self._room.update(task, test), tasks)

    def evaluate(self, tasks: Iterable[Task], adapt: bool) -> Iterator[tuple[int, Correct]]:
        """Tests each client's personal models."""
        return self._map(lambda task: (task.client, self._room.evaluate(task, adapt)), tasks)

    def _map(self, fn: Callable[[Task], T], tasks: Iterable[Task]) -> Iterator[T]:
        """Starts at once, and keeps two tasks a worker in memory, not all of them."""
        coming = (self._pool.submit(fn, task) for task in tasks)
        return self._drained(set(islice(coming, 2 * self._workers)), coming)

    def _drained(self, running: set[Future[T]], coming: Iterator[Future[T]]) -> Iterator[T]:
        while running:
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                result = future.result()
                running.update(islice(coming, 1))
                yield result

    @property
    def _room(self) -> ClientRoom:
        room: ClientRoom = self._own.room
        return room


def _start(own: threading.local, setting: Setting) -> None:
    torch.set_num_threads(1)
    own.room = ClientRoom(setting)
