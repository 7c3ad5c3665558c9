"""A network in two parts: the backbone, which clients share, and the head, which each keeps."""

import copy
from typing import Self

from torch import Tensor, nn

from manyheads.errors import InputError, unknown
from manyheads.models.dropout import replace_dropout


class SplitModel(nn.Module):
    """A backbone and a head; the logits are ``head(backbone(x))``.

    Args:
        backbone: Maps images ``[batch, c, h, w]`` to features ``[batch, feature_dim]``.
        head: Maps features to logits ``[batch, classes]``; usually one linear layer.

    Attributes:
        head_path: Where the head was in the network that ``from_module`` split, otherwise ``None``.
    """

    def __init__(self, backbone: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = head
        self.head_path: str | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits ``[batch, classes]`` of images ``[batch, c, h, w]``."""
        logits: Tensor = self.head(self.backbone(x))
        return logits

    def parts(self) -> dict[str, nn.Module]:
        """Return the parts by name: ``backbone`` and ``head``."""
        return {"backbone": self.backbone, "head": self.head}

    @classmethod
    def from_module(cls, module: nn.Module, head: str = "fc") -> Self:
        """Split a copy of any network; its weights are kept and ``module`` is not changed.

        ``torch.nn.Dropout`` and ``Dropout2d`` are replaced by ``manyheads.models.Dropout``. Call ``probe`` on the
        result: it finds functional dropout and networks that do something after their head.

        Args:
            module: The network.
            head: Attribute path of its last linear layer, such as ``"fc"`` or ``"classifier.6"``.

        Raises:
            InputError: When ``module`` has no such layer.
        """
        _check_head(module, head)
        backbone = replace_dropout(copy.deepcopy(module))
        parent, _, leaf = head.rpartition(".")
        owner = backbone.get_submodule(parent)
        part = owner.get_submodule(leaf)
        setattr(owner, leaf, nn.Identity())
        split = cls(backbone, part)
        split.head_path = head
        return split

    def to_module(self) -> nn.Module:
        """Return a copy of the network as one module, the head back in its place (undoes ``from_module``)."""
        if self.head_path is None:
            return copy.deepcopy(self)
        whole = copy.deepcopy(self.backbone)
        parent, _, leaf = self.head_path.rpartition(".")
        setattr(whole.get_submodule(parent), leaf, copy.deepcopy(self.head))
        return whole


def _check_head(module: nn.Module, head: str) -> None:
    """Refuse a head that ``module`` does not have, naming the nearest one or the linear layers that there are."""
    modules = dict(module.named_modules(remove_duplicate=False))
    kind = type(module).__name__
    found = modules.get(head) if head else None
    if found is not None and any(True for _ in found.parameters()):
        return
    if found is not None:
        raise InputError(f"head {head!r} of {kind} is a {type(found).__name__} without weights; {_linears(modules)}")
    line = unknown("head", head, [name for name in modules if name])
    hint = line if "did you mean" in line else f"{kind} has no module {head!r}"
    raise InputError(f"{hint}; {_linears(modules)}")


def _linears(modules: dict[str, nn.Module]) -> str:
    names = [name for name, child in modules.items() if name and isinstance(child, nn.Linear)]
    return f"its linear layers are: {', '.join(names)}" if names else "it has no linear layer"
