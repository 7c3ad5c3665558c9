"""manyheads: personalized federated learning, one body and many heads.

``import manyheads`` loads nothing heavy; ``Experiment``, ``compare`` and ``Config`` are imported when first used.
"""

import importlib
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from manyheads.comparison import compare
    from manyheads.config import Config
    from manyheads.data.dataset import dataset_from_arrays
    from manyheads.experiment import Experiment
    from manyheads.models.split import SplitModel

# MKL keeps its buffers by thread, those of ended threads too, so memory grows with every pool of threads. It reads this
# once, when torch is imported; glibc keeps the memory all the same (local/allocator.py).
os.environ.setdefault("MKL_DISABLE_FAST_MM", "1")

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
