"""The two ways in which a command can fail, and the wording that they share."""

import difflib
from collections.abc import Iterable


class InputError(Exception):
    """Wrong input from a person: one line that names field, value and nearest valid choice. Exit status 2."""


class RunError(Exception):
    """A run that started and cannot go on, such as a loss that is not finite. Exit status 1."""


def unknown(what: str, name: str, choices: Iterable[str]) -> str:
    """One line for a name that is not among ``choices``, with the nearest one or all of them.

    >>> unknown("method", "fedper2", ["fedavg", "fedper"])
    "unknown method 'fedper2'; did you mean 'fedper'?"
    """
    choices = sorted(choices)
    near = difflib.get_close_matches(name, choices, n=1)
    if near:
        return f"unknown {what} {name!r}; did you mean {near[0]!r}?"
    return f"unknown {what} {name!r}; choose one of: {', '.join(choices)}"
