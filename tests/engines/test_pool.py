"""The pool of workers on workers that are only numbers."""

from collections.abc import Iterable, Sequence

import pytest

from manyheads.engines.pool import LostError, Pool


class Numbers:
    """Workers 0, 1, ... that answer with their message; Ctrl-C comes at one moment of one of them."""

    def __init__(self, moment: str = "") -> None:
        self.moment, self.count = moment, 0
        self.running: list[int] = []
        self.messages: dict[int, bytes] = {}

    def _at(self, moment: str) -> None:
        if moment == self.moment:
            raise KeyboardInterrupt

    def start(self) -> int:
        self.running.append(self.count)
        self.count += 1
        return self.count - 1

    def send(self, worker: int, message: bytes) -> int:
        self._at("send")
        self.messages[worker] = message
        return worker

    def wait(self, tickets: Sequence[int]) -> Iterable[int]:
        self._at("wait")
        return list(tickets)

    def receive(self, worker: int, ticket: int) -> bytes:
        self._at("receive")
        if self.messages[ticket] == b"lost":
            self.running.remove(worker)
            raise LostError(f"worker {worker} is gone")
        return self.messages[ticket]

    def stop(self, worker: int) -> None:
        self.running.remove(worker)  # once, and only those that run


@pytest.mark.parametrize("moment", ["send", "wait", "receive"])
def test_ctrl_c_leaves_no_worker_behind(moment: str) -> None:
    workers = Numbers(moment)
    pool = Pool(workers, 2, lambda line: None)
    with pytest.raises(KeyboardInterrupt):
        list(pool.map((client, b"x") for client in range(5)))
    pool.close()
    assert workers.running == []


def test_those_that_were_lost_are_not_stopped_again() -> None:
    workers = Numbers()
    pool = Pool(workers, 2, lambda line: None)
    found = dict(pool.map((client, b"lost" if client == 1 else b"x") for client in range(4)))
    assert {client for client, answer in found.items() if answer == b"x"} == {0, 2, 3}
    assert len(workers.running) == 2
    pool.close()
    pool.close()
    assert workers.running == []
