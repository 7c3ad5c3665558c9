"""manyheads: personalized federated learning, one body and many heads.

``import manyheads`` loads nothing heavy; ``Experiment``, ``compare`` and ``Config`` are imported when first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from manyheads.comparison import compare
    from manyheads.config import Config
    from manyheads.data.dataset import dataset_from_arrays
    from manyheads.experiment import Experiment
    from manyheads.models.split import SplitModel

__all__ = ["Config", "Experiment", "SplitModel", "compare", "dataset_from_arrays"]

_HOMES = {
    "Config": "manyheads.config",
    "Experiment": "manyheads.experiment",
    "SplitModel": "manyheads.models.split",
    "compare": "manyheads.comparison",
    "dataset_from_arrays": "manyheads.data.dataset",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'manyheads' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
