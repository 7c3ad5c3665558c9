"""A pool of threads in this process. The work is done inside torch, which releases the interpreter's lock."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import TypeVar

import torch

from manyheads.local.client import ClientRoom, Correct, Reply, Task
from manyheads.local.setting import Setting

T = TypeVar("T")


class Threads:
    """Clients side by side, each on one thread with a room of its own."""

    def __init__(self, setting: Setting, workers: int) -> None:
        self._setting = setting
        self._own = threading.local()
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="client", initializer=self._start)

    def _start(self) -> None:
        torch.set_num_threads(1)
        self._own.room = ClientRoom(self._setting)

    def __enter__(self) -> Threads:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Lets running clients finish and drops those that wait."""
        self._pool.shutdown(cancel_futures=True)

    def update(self, tasks: Iterable[Task], test: bool) -> Iterator[Reply]:
        """Runs a round at each client."""
        return self._map(lambda task: self._room.update(task, test), tasks)

    def evaluate(self, tasks: Iterable[Task], adapt: bool) -> Iterator[tuple[int, Correct]]:
        """Tests each client's personal models."""
        return self._map(lambda task: (task.client, self._room.evaluate(task, adapt)), tasks)

    def _map(self, fn: Callable[[Task], T], tasks: Iterable[Task]) -> Iterator[T]:
        return self._pool.map(fn, tasks)

    @property
    def _room(self) -> ClientRoom:
        room: ClientRoom = self._own.room
        return room
