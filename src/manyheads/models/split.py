"""A network in two parts: the backbone, which clients share, and the head, which each keeps."""

import copy
from typing import Self

from torch import Tensor, nn

from manyheads.errors import InputError
from manyheads.models.dropout import replace_dropout

Shape = tuple[int, int, int]  # of an image: channels, height, width


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
        inner = {name: child for name, child in module.named_modules(remove_duplicate=False) if name}
        if head not in inner or not any(True for _ in inner[head].parameters()):
            linears = [name for name, child in inner.items() if isinstance(child, nn.Linear)]
            raise InputError(
                f"{type(module).__name__} has no module {head!r}{' with weights' if head in inner else ''}; "
                + (f"its linear layers are: {', '.join(linears)}" if linears else "it has no linear layer")
            )
        backbone = replace_dropout(copy.deepcopy(module))
        split = cls(backbone, backbone.get_submodule(head))
        backbone.set_submodule(head, nn.Identity())
        split.head_path = head
        return split

    def to_module(self) -> nn.Module:
        """Return a copy of the network as one module, the head back in its place (undoes ``from_module``)."""
        if self.head_path is None:
            return copy.deepcopy(self)
        whole = copy.deepcopy(self.backbone)
        whole.set_submodule(self.head_path, copy.deepcopy(self.head))
        return whole
