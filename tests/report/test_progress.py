import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from manyheads.events import Event, Finished, RoundDone, Started, Warned
from manyheads.report.progress import ProgressReport, headline

PERSONAL = {"model": "personal", "data": "client test", "moment": "post_agg", "average": "macro", "accuracy": 0.91234}
GLOBAL = {"model": "global", "data": "global test", "moment": "post_agg", "average": "micro", "accuracy": 0.5}
EVENTS: list[Event] = [
    Started("fedper", rounds=3),
    RoundDone("fedper", -2, {"stage": 0, "cohort": [1], "metrics": []}),
    RoundDone("fedper", -1, {"cohort": [], "metrics": [GLOBAL, PERSONAL]}),
    RoundDone("fedper", 0, {"cohort": [0, 1], "metrics": []}),
    Warned("fedper", "client [3] has no test images"),
    RoundDone("fedper", 1, {"cohort": [1, 2], "metrics": [PERSONAL]}),
    Finished("fedper", Path("runs/a")),
]


def shown(terminal: bool) -> str:
    console = Console(file=io.StringIO(), force_terminal=terminal, width=100, color_system=None)
    with ProgressReport(console) as on_event:
        for event in EVENTS:
            on_event(event)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_plain_lines_without_a_terminal() -> None:
    assert shown(terminal=False).splitlines() == [
        "fedper: 3 rounds",
        "fedper: round 1/3",
        "fedper: before training personal 91.23 % (client test, macro)",
        "fedper: round 2/3",
        "fedper: warning: client [3] has no test images",
        "fedper: round 3/3 personal 91.23 % (client test, macro)",
        "fedper: finished, stored in runs/a",
    ]


def test_a_bar_on_a_terminal() -> None:
    drawn = shown(terminal=True)
    assert "3/3" in drawn
    assert "personal 91.23 %" in drawn
    assert "warning: client [3] has no test images" in drawn
    assert "stored in" not in drawn


def test_the_engine_is_said_once() -> None:
    console = Console(file=io.StringIO(), force_terminal=False)
    on_event = ProgressReport(console)
    for label in ("fedavg", "fedper"):
        on_event(Started(label, rounds=30, engine="threads, 2 at a time"))
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue().splitlines() == [
        "engine: threads, 2 at a time",
        "fedavg: 30 rounds",
        "fedper: 30 rounds",
    ]


def test_a_resumed_run_says_what_is_done() -> None:
    console = Console(file=io.StringIO(), force_terminal=False)
    ProgressReport(console)(Started("fedper", rounds=30, done=12))
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue() == "fedper: 30 rounds, 12 of them done\n"


@pytest.mark.parametrize(
    ("metrics", "text"),
    [
        ([GLOBAL, PERSONAL], "personal 91.23 % (client test, macro)"),
        ([GLOBAL], "global 50.00 % (global test, micro)"),
        ([], ""),
    ],
)
def test_headline_prefers_the_personal_models(metrics: list[dict[str, Any]], text: str) -> None:
    assert headline({"metrics": metrics}) == text


def test_bars_of_long_ago_make_room() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=100, height=20, color_system=None)
    with ProgressReport(console) as on_event:
        for number in range(30):
            on_event(Started(f"run {number}.", rounds=1))
            on_event(Finished(f"run {number}."))
    assert isinstance(console.file, io.StringIO)
    last = console.file.getvalue()[-2000:]  # the last picture that is drawn
    assert "run 29." in last
    assert "run 18." in last
    assert "run 5." not in last
