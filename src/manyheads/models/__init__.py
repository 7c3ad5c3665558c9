"""Networks in two parts, and the small ones that the papers use. Importing this package does not import torch."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from manyheads.models.dropout import Dropout, draw_mask, replace_dropout, set_generator
    from manyheads.models.probing import probe
    from manyheads.models.registry import build
    from manyheads.models.split import SplitModel
    from manyheads.models.winograd import Conv2d

__all__ = ["Conv2d", "Dropout", "SplitModel", "build", "draw_mask", "probe", "replace_dropout", "set_generator"]


def __getattr__(name: str) -> object:
    """Import a public name on first use."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = {"Conv2d": "winograd", "SplitModel": "split", "build": "registry", "probe": "probing"}.get(name, "dropout")
    return getattr(import_module(f"{__name__}.{home}"), name)
