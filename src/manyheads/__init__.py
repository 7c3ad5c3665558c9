"""manyheads: personalized federated learning, one body and many heads.

``import manyheads`` loads nothing heavy; ``Experiment``, ``compare`` and ``Config`` are imported when first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from manyheads.comparison import compare
    from manyheads.config import Config
    from manyheads.experiment import Experiment

__all__ = ["Config", "Experiment", "compare"]

_HOMES = {"Config": "manyheads.config", "Experiment": "manyheads.experiment", "compare": "manyheads.comparison"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'manyheads' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
