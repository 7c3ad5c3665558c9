"""Tasks and replies as bytes, and the client room behind them: what crosses to another process or machine."""

from __future__ import annotations

import json
import traceback
from collections.abc import Mapping
from typing import Any

from manyheads.contract import Broadcast, PrivateState
from manyheads.contract.wire import WireError
from manyheads.errors import InputError, RunError
from manyheads.local.client import ClientRoom, Correct, Reply, Task
from manyheads.local.setting import Setting

_KNOWN: Mapping[str, type[Exception]] = {"InputError": InputError, "WireError": WireError, "RunError": RunError}


def _pack(head: Mapping[str, Any], *blobs: bytes) -> bytes:
    """A JSON head and binary parts in one message. Floats survive JSON bit for bit."""
    text = json.dumps({**head, "sizes": [len(blob) for blob in blobs]}).encode()
    return b"".join([len(text).to_bytes(8, "little"), text, *blobs])


def _unpack(message: bytes) -> tuple[dict[str, Any], list[bytes]]:
    start = 8 + int.from_bytes(message[:8], "little")
    head = json.loads(message[8:start])
    blobs = []
    for size in head.pop("sizes"):
        blobs.append(message[start : start + size])
        start += size
    return head, blobs


def ask(what: str, task: Task, flag: bool) -> bytes:
    """A call: ``what`` is ``update`` or ``evaluate``, ``flag`` the second argument of that method of the room."""
    kept = [] if task.private is None else [task.private.to_bytes()]
    head = {"what": what, "flag": flag, "client": task.client, "round": task.round, "epochs": task.epochs}
    return _pack(head, task.received.to_bytes(), *kept)


class Handler:
    """Answers calls: bytes in, bytes out. What goes wrong is part of the answer; only running out of memory is not."""

    def __init__(self, setting: Setting) -> None:
        self._room = ClientRoom(setting)

    def __call__(self, message: bytes) -> bytes:
        """The answer to a call."""
        head, (received, *kept) = _unpack(message)
        private = PrivateState.from_bytes(kept[0]) if kept else None
        task = Task(head["client"], head["round"], Broadcast.from_bytes(received), private, head["epochs"])
        try:
            if head["what"] == "evaluate":
                return _pack({"correct": _plain(self._room.evaluate(task, head["flag"]))})
            return _of_reply(self._room.update(task, head["flag"]))
        except MemoryError:
            raise
        except Exception as error:
            if "DefaultCPUAllocator" in str(error):  # torch's word for it, a RuntimeError
                raise MemoryError from None
            kind = next((name for name, known in _KNOWN.items() if isinstance(error, known)), type(error).__name__)
            return _pack({"raised": kind, "says": str(error), "traceback": traceback.format_exc()})


def reply(client: int, answer: bytes) -> Reply:
    """What ``update`` gave.

    Raises:
        Exception: what the client raised. Its own errors come as they were, others as a ``RuntimeError`` with the
            traceback as a note.
    """
    head, blobs = _unpack(answer)
    _raise(client, head)
    upload, private = blobs
    correct = _correct(head["correct"])
    return Reply(
        client, upload, PrivateState.from_bytes(private), correct, head["loss"], head["error"], notes=head["notes"]
    )


def correct(client: int, answer: bytes) -> tuple[int, Correct]:
    """What ``evaluate`` gave; raises as ``reply`` does."""
    head, _ = _unpack(answer)
    _raise(client, head)
    return client, _correct(head["correct"])


def _of_reply(given: Reply) -> bytes:
    head = {"loss": given.loss, "error": given.error, "notes": given.notes, "correct": _plain(given.correct)}
    return _pack(head, given.upload, given.private.to_bytes())


def _plain(counts: Correct) -> list[list[Any]]:
    return [[variant, moment, right] for (variant, moment), right in counts.items()]


def _correct(plain: list[list[Any]]) -> Correct:
    return {(variant, moment): right for variant, moment, right in plain}


def _raise(client: int, head: Mapping[str, Any]) -> None:
    if "raised" not in head:
        return
    if head["raised"] in _KNOWN:
        raise _KNOWN[head["raised"]](head["says"])
    error = RuntimeError(f"client {client}: {head['raised']}: {head['says']}")
    error.add_note(head["traceback"])
    raise error
