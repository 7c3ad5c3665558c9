"""Which rounds a run has, and who takes part in them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from manyheads.contract import Stage
from manyheads.contract.random import stream


@dataclass(frozen=True)
class Moment:
    """A point of a run: the start of a stage, or one of its rounds. Each ends with a commit.

    Attributes:
        position: counts the moments of a run from 0.
        stage: which stage.
        round: None for the start of a stage; rounds before the main stage are negative, -1 is the last of them.
        main: whether this is the main stage, the one that is measured.
        last: whether the run ends with this round.
        upcoming: the round that follows.
    """

    position: int
    stage: int
    round: int | None
    main: bool
    last: bool
    upcoming: int


def moments(stages: Sequence[Stage]) -> Iterator[Moment]:
    """All moments of a run, in order."""
    before = sum(stage.rounds for stage in stages[:-1])
    position, number = 0, -before
    for index, stage in enumerate(stages):
        main = index == len(stages) - 1
        yield Moment(position, index, None, main, main and stage.rounds == 0, number)
        position += 1
        for _ in range(stage.rounds):
            yield Moment(position, index, number, main, main and number == stage.rounds - 1, number + 1)
            position, number = position + 1, number + 1


def cohort(seed: int, round: int, clients: int, participation: float) -> list[int]:
    """The clients of a round, ascending: ``participation * clients``, rounded half up, at least one; uniform."""
    size = max(1, int(participation * clients + 0.5))
    return sorted(torch.randperm(clients, generator=stream(seed, "cohort", round))[:size].tolist())
