"""An engine whose clients are elsewhere: only serialised messages go to them and come back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any, Self

from manyheads.contract import PrivateState
from manyheads.engines import messages
from manyheads.engines.pool import Lost, Pool
from manyheads.errors import RunError
from manyheads.local.client import Correct, Reply, Task


class Remote:
    """What engines with a pool of workers have in common."""

    def __init__(self, pool: Pool[Any, Any]) -> None:
        self._pool = pool

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends the workers; between rounds they hold nothing."""
        self._pool.close()

    def update(self, tasks: Iterable[Task], test: bool) -> Iterator[Reply]:
        """Runs a round at each client. One whose workers are lost twice has an error for a reply."""
        answers = self._pool.map((task.client, messages.ask("update", task, test)) for task in tasks)
        return (_lost(client, got) if isinstance(got, Lost) else messages.reply(client, got) for client, got in answers)

    def evaluate(self, tasks: Iterable[Task], adapt: bool) -> Iterator[tuple[int, Correct]]:
        """Tests each client's personal models.

        Raises:
            RunError: the workers of one client were lost twice.
        """
        answers = self._pool.map((task.client, messages.ask("evaluate", task, adapt)) for task in tasks)
        return (messages.correct(client, _there(client, got)) for client, got in answers)


def _lost(client: int, got: Lost) -> Reply:
    return Reply(client, b"", PrivateState(), {}, {}, f"client {client}: {got.why}")


def _there(client: int, got: bytes | Lost) -> bytes:
    if isinstance(got, Lost):
        raise RunError(f"the test of client {client}: {got.why}")
    return got
