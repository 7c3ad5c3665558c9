"""A pool of worker processes that answer bytes with bytes, and outlives each of its workers."""

from __future__ import annotations

import os
import signal
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait

import torch

from manyheads.engines.base import Say
from manyheads.errors import InputError
from manyheads.local.setting import Setting
from manyheads.local.steps import StoppedError

Answer = Callable[[bytes], bytes]

TRIES = 2
OUT_OF_MEMORY = 77  # exit status of a worker that caught a MemoryError


@dataclass
class Call:
    """A client's call on its way; ``lost`` says of each worker that failed it how it ended."""

    client: int
    message: bytes
    lost: tuple[str, ...] = ()


@dataclass(frozen=True)
class Lost:
    """What comes instead of an answer where every try lost its worker."""

    why: str


@dataclass(frozen=True)
class Worker:
    """A forked process and the pool's end of the pipe to it."""

    pid: int
    pipe: Connection

    def end(self) -> int:
        """Waits for a worker that has ended, or is about to; its exit status, negative for a signal."""
        self.pipe.close()
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


class Pool:
    """Workers forked from this process.

    Args:
        start: makes, inside a worker, what answers its calls.
        workers: how many.
        say: is told of every worker that fails.

    Raises:
        InputError: the system cannot fork.
    """

    def __init__(self, start: Callable[[], Answer], workers: int, say: Say) -> None:
        if not hasattr(os, "fork"):
            raise InputError("run.engine: this system cannot fork processes; take 'threads', which gives the same bits")
        self._start, self._say = start, say
        self._idle = [self._fork() for _ in range(workers)]
        self._busy: dict[Connection, tuple[Worker, Call]] = {}

    def map(self, calls: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, bytes | Lost]]:
        """Answers by client, as they come. Starts at once; a call is made when a worker is free for it.

        A call whose worker is lost is tried once more, on another worker.
        """
        coming = (Call(*call) for call in calls)
        waiting: deque[Call] = deque()
        self._hand_out(waiting, coming)
        return self._answers(waiting, coming)

    def close(self) -> None:
        """Ends all workers, whatever they do."""
        for worker in (*self._idle, *(worker for worker, _ in self._busy.values())):
            with suppress(ProcessLookupError):
                os.kill(worker.pid, signal.SIGKILL)
            worker.end()
        self._idle, self._busy = [], {}

    def _answers(self, waiting: deque[Call], coming: Iterator[Call]) -> Iterator[tuple[int, bytes | Lost]]:
        while self._busy:
            found: list[tuple[int, bytes | Lost]] = []
            for pipe in wait(list(self._busy)):
                assert isinstance(pipe, Connection)
                worker, call = self._busy.pop(pipe)
                try:
                    found.append((call.client, pipe.recv_bytes()))
                    self._idle.append(worker)
                except (EOFError, OSError):
                    found += self._failed(worker, call, waiting)
            self._hand_out(waiting, coming)
            yield from found

    def _hand_out(self, waiting: deque[Call], coming: Iterator[Call]) -> None:
        while self._idle:
            call = waiting.popleft() if waiting else next(coming, None)
            if call is None:
                return
            worker = self._idle.pop(0)
            self._busy[worker.pipe] = worker, call
            with suppress(OSError):  # a dead worker: its end of the pipe says so when it is waited for
                worker.pipe.send_bytes(call.message)

    def _failed(self, worker: Worker, call: Call, waiting: deque[Call]) -> Iterator[tuple[int, Lost]]:
        """Replaces a worker. Its call waits for another one, unless it was its last try."""
        call.lost = (*call.lost, f"worker {worker.pid} {how_it_ended(worker.end())}")
        self._idle.append(self._fork())  # behind the others: another worker comes first
        if len(call.lost) == TRIES:
            yield call.client, Lost(" and ".join(call.lost))
            return
        self._say(f"client {call.client}: {call.lost[-1]}; another worker tries again")
        waiting.append(call)

    def _fork(self) -> Worker:
        return fork(lambda pipe: serve(pipe, self._start()))


def fork(run: Callable[[Connection], None]) -> Worker:
    """A process that runs ``run`` with its end of a pipe, and then ends without touching what was its parent's."""
    ours, theirs = Pipe()
    pid = os.fork()
    if pid:
        theirs.close()
        return Worker(pid, ours)
    status = 1
    try:
        _let_go(theirs)
        run(theirs)
        status = 0
    except (EOFError, BrokenPipeError, StoppedError):  # nobody is there any more
        pass
    except MemoryError:
        status = OUT_OF_MEMORY
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def _let_go(pipe: Connection) -> None:
    """Closes every file of the parent's, and leaves Ctrl-C to it.

    Locks on files, and other workers' pipes, would otherwise live as long as this process does.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    mine = pipe.fileno()
    os.closerange(3, mine)
    os.closerange(mine + 1, os.sysconf("SC_OPEN_MAX"))
    torch.set_num_threads(1)


def serve(pipe: Connection, answer: Answer) -> None:
    """Answers calls until the other end is closed, which raises ``EOFError``."""
    while True:
        pipe.send_bytes(answer(pipe.recv_bytes()))


def watchful(setting: Setting) -> Setting:
    """For a fork: training ends when the process that forked this one is gone, whose lock on a run may be wanted."""
    parent = os.getppid()
    return replace(setting, stopped=lambda: os.getppid() != parent)


def end_as(code: int) -> None:
    """Ends this process in the way in which another one did."""
    if code < 0:
        os.kill(os.getpid(), -code)
    os._exit(code)


def how_it_ended(code: int) -> str:
    """An exit status in words."""
    if code == OUT_OF_MEMORY:
        return "ran out of memory"
    if code < 0:
        name = signal.Signals(-code).name
        return f"was killed by {name}" + (", perhaps for want of memory" if -code == signal.SIGKILL else "")
    return f"ended with status {code}"
