"""Workers on a Ray cluster: the one that ``RAY_ADDRESS`` names, or one that is started on this machine.

What a client receives and gives are messages, as with every engine of processes. The stage itself (method, network,
data) goes to each worker once, by Ray's own means; there, manyheads and a method of one's own must be installed.
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any

from manyheads.engines import messages
from manyheads.engines.base import Say, cores, one_thread
from manyheads.engines.pool import LostError, Pool
from manyheads.engines.remote import Remote
from manyheads.errors import InputError
from manyheads.local.setting import Setting


class Ray(Remote):
    """Clients side by side on several machines: by default a worker for each processor of the cluster."""

    def __init__(self, setting: Setting, workers: int | None = None, say: Say = lambda line: None) -> None:
        self._ray = _library()
        self._ours = not self._ray.is_initialized()
        if self._ours:
            here = {} if os.environ.get("RAY_ADDRESS") else {"num_cpus": workers or cores(), "include_dashboard": False}
            self._ray.init(log_to_driver=False, logging_level="ERROR", **here)
        try:
            super().__init__(Pool(_Actors(self._ray, setting), self._count(workers), say))
        except BaseException:
            self._shut()
            raise

    @staticmethod
    def check(setting: Setting) -> None:
        """Refuses where Ray is not installed."""
        _library()

    def _count(self, workers: int | None) -> int:
        """How many workers; more than the cluster has processors would wait for ever."""
        there = int(self._ray.cluster_resources().get("CPU", 0))
        if not 0 < (workers or 1) <= there:
            raise InputError(f"run.workers = {workers or 'unset'}: the Ray cluster has {there} processors")
        return workers or there

    def _shut(self) -> None:
        if self._ours:
            self._ray.shutdown()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends the workers, and the cluster where it was started here."""
        super().__exit__(kind, error, trace)
        self._shut()


class _Actors:
    """Ray's actors as the workers of a pool."""

    def __init__(self, ray: Any, setting: Setting) -> None:
        self._ray = ray
        self._kind = ray.remote(num_cpus=1, max_restarts=0)(_Worker)
        try:
            self._setting = ray.put(setting)
        except TypeError as error:
            why = error.__cause__ or str(error).partition("\n")[0]
            raise InputError(f"run.engine = 'ray': the method or network cannot be sent to workers: {why}") from None
        self._check()

    def _check(self) -> None:
        """Refuses a stage that workers cannot load, which would otherwise look like a lost worker every time."""
        worker = self.start()
        try:
            self._ray.get(worker.ready.remote())
        except self._ray.exceptions.RayActorError as error:
            found = re.findall(r"\w+Error: (?!System error)[^\n]+", str(error))
            why = found[-1] if found else str(error).splitlines()[0]
            raise InputError(f"run.engine = 'ray': its workers cannot start: {why}") from None
        self.stop(worker)

    def start(self) -> Any:
        """A new actor."""
        return self._kind.remote(self._setting)

    def send(self, worker: Any, message: bytes) -> Any:
        """Gives an actor a message."""
        return worker.answer.remote(message)

    def wait(self, tickets: Sequence[Any]) -> Iterable[Any]:
        """Answers that are there; that of a lost actor is an error."""
        ready: list[Any] = self._ray.wait(list(tickets), num_returns=1)[0]
        return ready

    def receive(self, worker: Any, ticket: Any) -> bytes:
        """An answer; ``LostError`` where there is none."""
        try:
            answer: bytes = self._ray.get(ticket)
            return answer
        except (self._ray.exceptions.RayActorError, self._ray.exceptions.OutOfMemoryError) as error:
            raise LostError(f"a worker was lost ({' '.join(str(error).split())})") from None

    def stop(self, worker: Any) -> None:
        """Kills an actor."""
        self._ray.kill(worker)


class _Worker:
    """What runs on the cluster."""

    def __init__(self, setting: Setting) -> None:
        self._one_thread = one_thread()
        self._one_thread.__enter__()
        self._handler = messages.Handler(setting)

    def ready(self) -> None:
        """Comes back when the stage is loaded."""

    def answer(self, message: bytes) -> bytes:
        """See ``messages.Handler``."""
        return self._handler(message)


def _library() -> Any:
    try:
        return importlib.import_module("ray")
    except ImportError:
        raise InputError("run.engine = 'ray' needs Ray: pip install 'manyheads[ray]', or take 'processes'") from None
