"""Each client in a process of its own, which begins with a message and ends with another: nothing else can cross.

Workers are forked before the stage begins and never compute: each forks a process for every call, from a memory in
which no client and no round has left anything.
"""

from __future__ import annotations

from contextlib import suppress

from manyheads.engines import messages
from manyheads.engines.pool import Answer, end_as, fork, watchful
from manyheads.engines.processes import Processes
from manyheads.local.setting import Setting


class Wire(Processes):
    """The proof that clients and server share messages only."""

    @staticmethod
    def answers(setting: Setting) -> Answer:
        """What a worker, once it is forked, answers its calls with."""
        return lambda message: _in_a_fork(setting, message)


def _in_a_fork(setting: Setting, message: bytes) -> bytes:
    """The answer of a new process. Where that is lost, this one ends in the same way, so that its pool takes notice."""
    client = fork(lambda pipe: pipe.send_bytes(messages.Handler(watchful(setting))(message)))
    answer = b""
    with suppress(EOFError, ConnectionResetError):
        answer = client.pipe.recv_bytes()
    if code := client.end():
        end_as(code)
    return answer
