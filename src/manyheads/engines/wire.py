"""Each client in a process of its own, which begins with a message and ends with another: nothing else can cross.

Workers are forked before the stage begins and never compute: each forks a process for every message, from a memory in
which no client and no round has left anything.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress

from manyheads.engines import messages
from manyheads.engines.base import Say, cores
from manyheads.engines.forks import Answer, Forks, check_forks, end_as, fork, watchful
from manyheads.engines.pool import Pool
from manyheads.engines.remote import Remote
from manyheads.local.setting import Setting

PATIENCE = 0.5  # seconds between looks at whether anybody still wants the answer


class Wire(Remote):
    """The proof that clients and server share messages only."""

    check = staticmethod(check_forks)

    def __init__(self, setting: Setting, workers: int | None = None, say: Say = lambda line: None) -> None:
        super().__init__(Pool(Forks(lambda: _in_a_fork(setting)), workers or cores(), say))


def _in_a_fork(setting: Setting) -> Answer:
    """Has a new process answer. Where it is lost, this one ends in the same way, so that its pool takes notice."""
    parent = os.getppid()

    def answer(message: bytes) -> bytes:
        client = fork(lambda pipe: pipe.send_bytes(messages.Handler(watchful(setting))(message)))
        found = b""
        with suppress(EOFError, OSError):
            while not client.pipe.poll(PATIENCE):
                if os.getppid() != parent:
                    os.kill(client.pid, signal.SIGKILL)
            found = client.pipe.recv_bytes()
        if code := client.end():
            end_as(code)
        return found

    return answer
