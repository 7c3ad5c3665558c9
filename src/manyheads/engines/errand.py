"""``Errand``: a function that waits for answers in the middle, in a thread that runs only while its owner waits."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

import torch

from manyheads.local.steps import StoppedError

T = TypeVar("T")


@dataclass(frozen=True)
class Asked:
    """The function waits for an answer to ``request``."""

    request: Any


@dataclass(frozen=True)
class Done(Generic[T]):
    """The function has ended with ``result``."""

    result: T


@dataclass(frozen=True)
class Failed:
    """The function has raised ``error``."""

    error: BaseException


class Errand(Generic[T]):
    """A coroutine for code that cannot yield. Nothing runs at the same time, so nothing depends on timing.

    Args:
        fn: what to run; somewhere inside it calls ``ask``.
    """

    def __init__(self, fn: Callable[[], T]) -> None:
        self._fn = fn
        self._answers: SimpleQueue[Any] = SimpleQueue()
        self._outcomes: SimpleQueue[Asked | Done[T] | Failed] = SimpleQueue()
        self._last: Asked | Done[T] | Failed | None = None
        self._thread = threading.Thread(target=self._run, name="client", daemon=True)

    def resume(self, answer: Any = None) -> Asked | Done[T] | Failed:
        """Runs until the next question or the end; the first call starts the function.

        Args:
            answer: to the last question. An exception is raised where the question was asked.
        """
        if self._thread.ident is None:
            self._thread.start()
        else:
            self._answers.put(answer)
        self._last = None
        self._last = self._outcomes.get()
        return self._last

    def end(self) -> None:
        """Ends the function, if it has begun: all its questions are answered by a StoppedError."""
        if self._thread.ident is None:
            return
        outcome = self._last or self._outcomes.get()  # none where the owner was interrupted while it waited
        while isinstance(outcome, Asked):
            outcome = self.resume(StoppedError())

    def ask(self, request: Any) -> Any:
        """Called by the function: hands ``request`` to the owner and waits for its answer."""
        self._outcomes.put(Asked(request))
        answer = self._answers.get()
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def _run(self) -> None:
        torch.set_num_threads(1)
        try:
            outcome: Done[T] | Failed = Done(self._fn())
        except BaseException as error:  # whatever it is, it is the owner's
            outcome = Failed(error)
        self._outcomes.put(outcome)
