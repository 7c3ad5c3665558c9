"""Simulated reality around any engine: clients that never answer, slow ones, a deadline, partial work.

Time is virtual: it follows from the size of a client's data and of its messages, and from random draws, never from a
clock. So who is absent does not depend on the engine, the number of workers or the machine, and whether a client drops
out, and how slow it is, not on the method either.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch

from manyheads.config import RealityConfig
from manyheads.contract import PrivateState
from manyheads.contract.random import stream
from manyheads.contract.wire import declared_bytes
from manyheads.engines.base import Engine
from manyheads.local.client import Correct, Reply, Task, Turn
from manyheads.local.setting import Setting


def with_reality(engine: Engine, setting: Setting, config: RealityConfig) -> Engine:
    """``engine``, inside a ``Reality`` where the config asks for anything."""
    return engine if config == RealityConfig() else Reality(engine, setting, config)


class Reality:
    """An engine that hands on only the turns of clients that answer in time. It keeps nothing from round to round.

    Args:
        engine: what runs these.
        setting: the stage.
        config: what is simulated.
    """

    def __init__(self, engine: Engine, setting: Setting, config: RealityConfig) -> None:
        self._engine, self._setting, self._config = engine, setting, config

    def update(self, tasks: Iterable[Task], test: bool) -> Iterator[Reply]:
        """Runs a round at each client that answers; the replies of the others, which are empty, come last."""
        turns: dict[int, Turn] = {}

        def present() -> Iterator[Task]:
            for task in tasks:
                turn = turns[task.client] = self.turn(task)
                if not turn.absent:
                    yield replace(task, epochs=turn.epochs)

        for reply in self._engine.update(present(), test):
            yield replace(reply, turn=turns[reply.client])
        for client, turn in turns.items():
            if turn.absent:
                yield Reply(client, b"", PrivateState(), {}, {}, turn=turn)

    def evaluate(self, tasks: Iterable[Task], adapt: bool) -> Iterator[tuple[int, Correct]]:
        """Tests each client's personal models; nobody is absent."""
        return self._engine.evaluate(tasks, adapt)

    def turn(self, task: Task) -> Turn:
        """What becomes of a client's turn, before anything is computed."""
        config, epochs = self._config, self._setting.budget.epochs
        if _drawn(torch.rand, self._setting.seed, task.round, task.client, "reality", "drop") < config.drop:
            return Turn(0.0, "dropped")
        transfer, epoch = self._transfer(task), self._epoch(task)
        least = 1 if config.late == "partial" else epochs
        for fewer in range(epochs, least - 1, -1):
            seconds = transfer + fewer * epoch
            if config.deadline is None or seconds <= config.deadline:
                return Turn(seconds, epochs=None if fewer == epochs else fewer)
        return Turn(transfer + epochs * epoch, "late")

    def _epoch(self, task: Task) -> float:
        """Virtual seconds of one local epoch."""
        config, seed, client = self._config, self._setting.seed, task.client
        spread = _drawn(torch.randn, seed, client, "reality", "spread")
        jitter = _drawn(torch.randn, seed, task.round, client, "reality", "jitter")
        slowness = math.exp(config.spread * spread + config.jitter * jitter)
        return len(self._setting.parties.train(client)) * config.sample_seconds * slowness

    def _transfer(self, task: Task) -> float:
        """Virtual seconds of both messages."""
        if self._config.bandwidth is None:
            return 0.0
        ctx = self._setting.client(task.round, task.client)
        up = declared_bytes(self._setting.algorithm, ctx, self._setting.words(task.client))
        return (task.down + up) / self._config.bandwidth


def told(turns: Mapping[int, Turn], deadline: float | None) -> dict[str, Any]:
    """A round on the virtual clock, for its row: how long it took, who was absent, who trained for fewer epochs.

    A round ends with the last answer; where one is missing, at the deadline, if there is one.

    Args:
        turns: by client, at least one; none is late where there is no deadline.
        deadline: in virtual seconds.
    """
    absent = {why: sorted(c for c, turn in turns.items() if turn.absent == why) for why in ("dropped", "late")}
    waits = deadline is not None and any(absent.values())
    seconds = deadline if waits else max(turn.seconds for turn in turns.values())
    partial = {str(client): turns[client].epochs for client in sorted(turns) if turns[client].epochs is not None}
    return {"seconds": seconds, **absent, "partial": partial}


def _drawn(draw: Callable[..., torch.Tensor], *key: int | str) -> float:
    return float(draw((), generator=stream(*key), dtype=torch.float64))
