"""Local-only: what a client reaches alone.

Nothing is sent. A client trains in the rounds in which it would take part, for the same epochs as in any other method,
so that budgets and streams are equal.
"""

from dataclasses import dataclass

from manyheads.contract import Algorithm, Part


@dataclass(frozen=True)
class LocalOnly(Algorithm):
    """Each client trains a model of its own and shares nothing."""

    shared = Part.NONE
