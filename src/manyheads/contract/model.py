"""What a loss sees of the network, and a model that answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor

from manyheads.contract.tree import Tree

Module = Callable[..., Tensor]


class Model:
    """The network with one set of weights: ``m.backbone(x)``, ``m.head(z)``, ``m.<part>(...)``.

    While it is being fitted, parts that are trained are in train mode and frozen parts in eval mode; at any other time
    everything is in eval mode.

    Attributes:
        params: the parameters by full name, without buffers.
    """

    def __init__(self, parts: Mapping[str, Module], params: Tree, at: Callable[[Tree], Model]) -> None:
        self._parts = parts
        self._at = at
        self.params = params

    def __getattr__(self, name: str) -> Module:
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            return self._parts[name]
        except KeyError:
            raise AttributeError(f"the model has no part {name!r}; it has {', '.join(self._parts) or 'none'}") from None

    def at(self, tree: Tree) -> Model:
        """The same modules with other weights, frozen, in eval mode. ``tree`` may lack parts that are not called."""
        return self._at(tree)


Logits = Callable[[Model, Tensor], Tensor]


@dataclass(frozen=True)
class Predictor:
    """A model that answers: ``logits(model, x)`` with the weights of ``tree``, shape ``[batch, classes]``."""

    tree: Tree
    logits: Logits
