"""Workers that are forks of this process: they have its code and data, and share nothing else with it."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import cast

import torch

from manyheads.engines.pool import LostError
from manyheads.errors import InputError
from manyheads.local.allocator import free_buffers
from manyheads.local.setting import Setting
from manyheads.local.steps import StoppedError

Answer = Callable[[bytes], bytes]

OUT_OF_MEMORY = 77  # exit status of a worker that caught a MemoryError


@dataclass(frozen=True)
class Fork:
    """A forked process and this process's end of the pipe to it."""

    pid: int
    pipe: Connection

    def end(self) -> int:
        """Waits for a process that has ended, or is about to; its exit status, negative for a signal."""
        self.pipe.close()
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


class Forks:
    """Forks as the workers of a pool; a pipe is the ticket for the answer that comes out of it.

    Args:
        start: makes, inside a worker, what answers its messages.
    """

    def __init__(self, start: Callable[[], Answer]) -> None:
        self._start = start

    def start(self) -> Fork:
        """A new worker."""
        return fork(self._serve)

    def send(self, worker: Fork, message: bytes) -> Connection:
        """Gives a worker a message; where it has ended, its end of the pipe says so when it is waited for."""
        with suppress(OSError):
            worker.pipe.send_bytes(message)
        return worker.pipe

    def wait(self, tickets: Sequence[Connection]) -> Iterable[Connection]:
        """Pipes with an answer, or with nobody at their other end."""
        return cast(Iterable[Connection], wait(tickets))

    def receive(self, worker: Fork, ticket: Connection) -> bytes:
        """An answer; ``LostError`` where there is none."""
        try:
            return ticket.recv_bytes()
        except (EOFError, OSError):
            raise LostError(f"worker {worker.pid} {_how_it_ended(worker.end())}") from None

    def stop(self, worker: Fork) -> None:
        """Kills a worker."""
        with suppress(ProcessLookupError, ChildProcessError):  # Ctrl-C came when it was already waited for
            os.kill(worker.pid, signal.SIGKILL)
            worker.end()

    def _serve(self, pipe: Connection) -> None:
        answer = self._start()
        while True:  # until nobody is at the other end, which raises EOFError
            pipe.send_bytes(answer(pipe.recv_bytes()))


def check_forks(setting: Setting) -> None:
    """Raises InputError where a fork of this process could not train, whatever the setting."""
    if not hasattr(os, "fork"):
        raise InputError("run.engine: this system cannot fork processes; take 'threads', which gives the same bits")
    if torch.cuda.is_available():  # then autograd keeps threads, which do not survive a fork
        raise InputError(
            "run.engine: a forked process cannot train where torch sees a GPU; take 'threads', which gives the same "
            "bits, or hide it: CUDA_VISIBLE_DEVICES="
        )


def fork(run: Callable[[Connection], None]) -> Fork:
    """A process that runs ``run`` with its end of a pipe, and then ends without touching what was its parent's."""
    ours, theirs = Pipe()
    free_buffers()
    pid = os.fork()
    if pid:
        theirs.close()
        return Fork(pid, ours)
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


def end_as(code: int) -> None:
    """Ends this process in the way in which another one did."""
    if code < 0:
        os.kill(os.getpid(), -code)
    os._exit(code)


def watchful(setting: Setting) -> Setting:
    """For a fork: training ends when the process that forked this one is gone, whose lock on a run may be wanted."""
    parent = os.getppid()
    return replace(setting, stopped=lambda: os.getppid() != parent)


def _let_go(pipe: Connection) -> None:
    """Closes every file of the parent's, and leaves Ctrl-C to it.

    Locks on files, and other workers' pipes, would otherwise live as long as this process does.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    mine = pipe.fileno()
    os.closerange(3, mine)
    os.closerange(mine + 1, os.sysconf("SC_OPEN_MAX"))
    torch.set_num_threads(1)


def _how_it_ended(code: int) -> str:
    if code == OUT_OF_MEMORY:
        return "ran out of memory"
    if code < 0:
        name = signal.Signals(-code).name
        return f"was killed by {name}" + (", perhaps for want of memory" if -code == signal.SIGKILL else "")
    return f"ended with status {code}"
