"""``Result``: what a run gave."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from manyheads.contract import PrivateState, ServerState
from manyheads.errors import InputError
from manyheads.evaluate import Row


@dataclass(frozen=True)
class Result:
    """What a run gave.

    Attributes:
        rows: one for every round, as in ``rounds.jsonl``; those of a stored run are read when they are first used.
        server: the server's last state.
        private: what each client that took part keeps; where there are many, or the run is stored, read when used.
        folder: where the run is stored, if it is.
    """

    rows: Sequence[Row]
    server: ServerState
    private: Mapping[int, PrivateState]
    folder: Path | None

    def accuracy(
        self,
        model: str = "personal",
        data: str = "client test",
        moment: str = "post_agg",
        average: str = "macro",
        variant: str = "",
    ) -> float:
        """The accuracy of the last evaluated round, in [0, 1].

        Raises:
            InputError: the run has no such row.
        """
        wanted = {"model": model, "data": data, "moment": moment, "average": average, "variant": variant}
        for row in reversed(self.rows):
            for metric in row["metrics"]:
                if all(metric[key] == value for key, value in wanted.items()):
                    return float(metric["accuracy"])
        have = sorted({tuple(metric[key] for key in wanted) for row in self.rows for metric in row["metrics"]})
        raise InputError(f"no accuracy for {tuple(wanted.values())}; the run has {', '.join(map(str, have)) or 'none'}")

    def __repr__(self) -> str:
        return f"Result({len(self.rows)} rows, private states of {len(self.private)} clients, folder={self.folder})"
