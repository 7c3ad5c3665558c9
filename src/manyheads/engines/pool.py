"""A pool of workers that answer bytes with bytes, wherever they are. It outlives each of its workers."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from manyheads.engines.base import Say

W = TypeVar("W")
T = TypeVar("T", bound=Hashable)

TRIES = 2


class LostError(Exception):
    """A worker ended before it had answered; the message says which one and how."""


@dataclass(frozen=True)
class Lost:
    """What comes instead of an answer where every try lost its worker."""

    why: str


class Workers(Protocol[W, T]):
    """A kind of workers. A ticket stands for an answer that is awaited."""

    def start(self) -> W:
        """A new worker."""
        ...

    def send(self, worker: W, message: bytes) -> T:
        """Gives a worker a message. One that is lost takes it as well: its ticket is ready at once."""
        ...

    def wait(self, tickets: Sequence[T]) -> Iterable[T]:
        """Those whose answers are there, or whose workers are lost: at least one."""
        ...

    def receive(self, worker: W, ticket: T) -> bytes:
        """An answer.

        Raises:
            LostError: there is none, and the worker is done with.
        """
        ...

    def stop(self, worker: W) -> None:
        """Ends a worker, whatever it does."""
        ...


@dataclass
class _Call:
    """A client's message on its way; ``lost`` says of each worker that failed it how it ended."""

    client: int
    message: bytes
    lost: tuple[str, ...] = ()


class Pool(Generic[W, T]):
    """Hands messages to workers, and replaces those that are lost.

    Args:
        workers: their kind.
        count: how many.
        say: is told of every worker that is lost.
    """

    def __init__(self, workers: Workers[W, T], count: int, say: Say) -> None:
        self._workers, self._say = workers, say
        self._all = [workers.start() for _ in range(count)]  # Ctrl-C may find one that is neither idle nor busy
        self._idle = list(self._all)
        self._busy: dict[T, tuple[W, _Call]] = {}

    def map(self, calls: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, bytes | Lost]]:
        """Answers by client, as they come. Starts at once; a message is made when a worker is free for it.

        One whose worker is lost is tried once more, with another worker.
        """
        coming = (_Call(*call) for call in calls)
        again: deque[_Call] = deque()
        self._hand_out(again, coming)
        return self._answers(again, coming)

    def close(self) -> None:
        """Ends all workers."""
        while self._all:
            self._workers.stop(self._all.pop())
        self._idle, self._busy = [], {}

    def _answers(self, again: deque[_Call], coming: Iterator[_Call]) -> Iterator[tuple[int, bytes | Lost]]:
        while self._busy:
            found: list[tuple[int, bytes | Lost]] = []
            for ticket in self._workers.wait(list(self._busy)):
                worker, call = self._busy.pop(ticket)
                try:
                    found.append((call.client, self._workers.receive(worker, ticket)))
                    self._idle.append(worker)
                except LostError as error:
                    self._all.remove(worker)
                    found += self._failed(call, str(error), again)
            self._hand_out(again, coming)
            yield from found

    def _hand_out(self, again: deque[_Call], coming: Iterator[_Call]) -> None:
        while self._idle:
            call = again.popleft() if again else next(coming, None)
            if call is None:
                return
            worker = self._idle.pop(0)
            self._busy[self._workers.send(worker, call.message)] = worker, call

    def _failed(self, call: _Call, how: str, again: deque[_Call]) -> Iterator[tuple[int, Lost]]:
        """Replaces a worker. Its call waits for another one, unless that was its last try."""
        call.lost = (*call.lost, how)
        self._all.append(self._workers.start())
        self._idle.append(self._all[-1])  # behind the others: another worker comes first
        if len(call.lost) == TRIES:
            yield call.client, Lost(" and ".join(call.lost))
            return
        self._say(f"client {call.client}: {how}; another worker tries again")
        again.append(call)
