"""Checks of a method's hyper-parameters: one line that names field, value and range. A value of None is not checked."""

from collections.abc import Collection, Iterator
from typing import Any

from manyheads.errors import InputError, unknown


def at_least(low: float, method: object, *names: str) -> None:
    """Raises InputError where one of the method's fields is below ``low``."""
    for name, value in _given(method, names):
        if not value >= low:
            raise InputError(f"algorithm.{name} = {value}: must be at least {low}")


def above(low: float, method: object, *names: str) -> None:
    """Raises InputError where one of the method's fields is not above ``low``."""
    for name, value in _given(method, names):
        if not value > low:
            raise InputError(f"algorithm.{name} = {value}: must be above {low}")


def between(low: float, high: float, method: object, *names: str) -> None:
    """Raises InputError where one of the method's fields is outside of ``[low, high]``."""
    for name, value in _given(method, names):
        if not low <= value <= high:
            raise InputError(f"algorithm.{name} = {value}: must be in [{low}, {high}]")


def one_of(choices: Collection[str], method: object, name: str) -> None:
    """Raises InputError where a field of the method is none of ``choices``."""
    for field, value in _given(method, (name,)):
        if value not in choices:
            raise InputError(f"algorithm.{field}: {unknown(field, value, choices)}")


def _given(method: object, names: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    return ((name, value) for name in names if (value := getattr(method, name)) is not None)
