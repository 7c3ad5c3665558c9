"""Progress of one or several runs: bars on a terminal, plain lines elsewhere."""

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from manyheads.events import Event, Finished, Started, Warned
from manyheads.report.rows import headlines

_BARS = 12  # finished ones besides the one that runs: more would push it out of a terminal


def headline(row: Mapping[str, Any]) -> str:
    """The accuracy of a line of ``rounds.jsonl``, such as ``"personal 91.23 % (client test, macro)"``, or ""."""
    for key, metric in headlines(row).items():
        return f"{key.model} {100 * metric['accuracy']:.2f} % ({key.data}, {key.average})"
    return ""


class ProgressReport:
    """A context manager to pass as ``on_event``.

    Args:
        console: where to write; bars when it is a terminal, otherwise one line an event.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._engine = ""
        self._tasks: dict[str, TaskID] = {}
        self._bars = Progress(
            TextColumn("{task.description}", markup=False),
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
        line = self._told(event)
        if isinstance(event, Started) and event.engine != self._engine:  # said once, not for every method
            self._engine = event.engine
            self._console.print(f"engine: {event.engine}", highlight=False)
        if isinstance(event, Warned) or not self._console.is_terminal:
            self._console.print(f"{event.label}: {line}", markup=False, highlight=False, soft_wrap=True)

    def _told(self, event: Event) -> str:
        """The event in words; bars are brought up to date."""
        if isinstance(event, Warned):
            return f"warning: {event.message}"
        if isinstance(event, Finished):
            return "finished" + (f", stored in {event.folder}" if event.folder else "")
        if isinstance(event, Started):
            for earlier in self._bars.task_ids[:-_BARS]:
                self._bars.update(earlier, visible=False)
            task = self._bars.add_task(event.label, total=event.rounds, completed=event.done, accuracy="")
            self._tasks[event.label] = task
            done = f", {event.done} of them done" if event.done else ""
            return f"{event.rounds} rounds{done}"
        trained, accuracy = bool(event.row.get("cohort")), headline(event.row)  # nobody trains at the start of a stage
        task = self._tasks[event.label]
        bar = self._bars.tasks[task]
        self._bars.update(task, advance=int(trained), accuracy=accuracy or bar.fields["accuracy"])
        return f"{f'round {bar.completed:.0f}/{bar.total:.0f}' if trained else 'before training'} {accuracy}".rstrip()
