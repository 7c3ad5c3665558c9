"""One client after the other, in this process: the reference."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import TracebackType

from manyheads.engines.base import Say
from manyheads.local.client import ClientRoom, Correct, Reply, Task
from manyheads.local.setting import Setting


class Serial:
    """The reference engine."""

    def __init__(self, setting: Setting, workers: int | None = None, say: Say = lambda line: None) -> None:
        self._room = ClientRoom(setting)

    @staticmethod
    def check(setting: Setting) -> None:
        """It runs anywhere."""

    def __enter__(self) -> Serial:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing to put away."""

    def update(self, tasks: Iterable[Task], test: bool) -> Iterator[Reply]:
        """Runs a round at each client."""
        return (self._room.update(task, test) for task in tasks)

    def evaluate(self, tasks: Iterable[Task], adapt: bool) -> Iterator[tuple[int, Correct]]:
        """Tests each client's personal models."""
        return ((task.client, self._room.evaluate(task, adapt)) for task in tasks)
