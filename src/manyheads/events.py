"""What an experiment tells the outside world while it runs. Free of torch, so that a command line starts at once."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Started:
    """A run begins or goes on.

    Attributes:
        label: the run's name among those of a comparison, such as ``"fedper"`` or ``"fedper, seed 1"``.
        rounds: how many rounds it has in all, with those of earlier stages.
        done: how many of them were finished earlier (0 for a fresh run).
        engine: what runs the clients, such as ``"threads, 2 at a time"``.
    """

    label: str
    rounds: int
    done: int = 0
    engine: str = ""


@dataclass(frozen=True)
class RoundDone:
    """A round ended; ``row`` is its line of ``rounds.jsonl``, ``round`` is -1 for the evaluation before training."""

    label: str
    round: int
    row: Mapping[str, Any]


@dataclass(frozen=True)
class Finished:
    """A run reached its last round; ``folder`` is None when nothing was stored."""

    label: str
    folder: Path | None = None


@dataclass(frozen=True)
class Warned:
    """Something a person should read that does not stop the run, in one line."""

    label: str
    message: str


Event = Started | RoundDone | Finished | Warned
OnEvent = Callable[[Event], None]
