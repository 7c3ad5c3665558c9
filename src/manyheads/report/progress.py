"""Progress of one or several runs: bars on a terminal, plain lines elsewhere."""

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from manyheads.events import Event, Finished, RoundDone, Started, Warned

# What a reader wants to see first: personal models as they are, then the global model.
_HEADLINES = (
    {"model": "personal", "data": "client test", "moment": "post_agg", "average": "macro"},
    {"model": "global", "data": "global test"},
    {"model": "global", "data": "client test", "average": "macro"},
)


def headline(row: Mapping[str, Any]) -> str:
    """The accuracy of a line of ``rounds.jsonl``, such as ``"personal 91.23 %"``; empty without an evaluation."""
    for wanted in _HEADLINES:
        for metric in row.get("metrics", ()):
            if all(metric.get(key) == value for key, value in wanted.items()):
                return f"{metric['model']} {100 * metric['accuracy']:.2f} %"
    return ""


class ProgressReport:
    """A context manager to pass as ``on_event``.

    Args:
        console: where to write; bars when it is a terminal, otherwise one line an event.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._rounds: dict[str, int] = {}
        self._done: dict[str, int] = {}
        self._tasks: dict[str, TaskID] = {}
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[accuracy]}"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def __call__(self, event: Event) -> None:
        """Show an event."""
        if isinstance(event, Warned):
            self._print(f"{event.label}: warning: {event.message}")
        elif self._console.is_terminal:
            self._draw(event)
        else:
            self._print(self._line(event))

    def _print(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _draw(self, event: Started | RoundDone | Finished) -> None:
        if isinstance(event, Started):
            task = self._bars.add_task(event.label, total=event.rounds, completed=event.done, accuracy="")
            self._tasks[event.label] = task
        elif isinstance(event, RoundDone):
            task = self._tasks[event.label]
            self._bars.update(task, advance=_counts(event))
            if accuracy := headline(event.row):
                self._bars.update(task, accuracy=accuracy)

    def _line(self, event: Started | RoundDone | Finished) -> str:
        if isinstance(event, Started):
            self._rounds[event.label], self._done[event.label] = event.rounds, event.done
            after = f", {event.done} of them done" if event.done else ""
            return f"{event.label}: {event.rounds} rounds{after}"
        if isinstance(event, Finished):
            return f"{event.label}: finished" + (f", stored in {event.folder}" if event.folder else "")
        self._done[event.label] += _counts(event)
        when = f"round {self._done[event.label]}/{self._rounds[event.label]}" if _counts(event) else "before training"
        return f"{event.label}: {when} {headline(event.row)}".rstrip()


def _counts(event: RoundDone) -> int:
    """1 for a round, also of an earlier stage; 0 for the start of a stage, where nobody trains."""
    return int(bool(event.row.get("cohort")))
