"""``Tree``: the tensors of a model by name. ``Part``: a set of those tensors, said by tag."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor


class Tree(Mapping[str, Tensor]):
    """An immutable mapping ``"part.layer.name" -> tensor``, always sorted by name.

    Sorting matters: reductions over a tree run in this order, so two trees with the same tensors give the same bits,
    however they were made or loaded. Arithmetic is elementwise over the names of the left tree; tensors that are not
    floating point (such as BatchNorm's step counter) and names that the right tree lacks stay as they are on the left.
    A name that only the right tree has is an error.
    """

    __slots__ = ("_tensors",)

    def __init__(self, tensors: Mapping[str, Tensor] | None = None) -> None:
        tensors = tensors or {}
        self._tensors: dict[str, Tensor] = {name: tensors[name] for name in sorted(tensors)}

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __repr__(self) -> str:
        return f"Tree({', '.join(f'{name} {list(t.shape)}' for name, t in self.items())})"

    def __eq__(self, other: object) -> bool:
        """Bit for bit: the same names, types, shapes and bytes (so NaN equals NaN, and 0.0 differs from -0.0)."""
        if not isinstance(other, Tree):
            return NotImplemented
        return list(self) == list(other) and all(same_bits(tensor, other[name]) for name, tensor in self.items())

    def part(self, name: str) -> Tree:
        """The tensors of one part, named without it: ``part("head")`` of ``head.weight`` is ``weight``."""
        prefix = name + "."
        return Tree({key.removeprefix(prefix): tensor for key, tensor in self.items() if key.startswith(prefix)})

    def replace(self, **parts: Tree) -> Tree:
        """This tree with whole parts replaced or added: ``replace(head=other.part("head"))``."""
        kept = {key: tensor for key, tensor in self.items() if key.partition(".")[0] not in parts}
        new = {f"{part}.{key}": tensor for part, tree in parts.items() for key, tensor in tree.items()}
        return Tree(kept | new)

    def map(self, fn: Callable[[Tensor], Tensor]) -> Tree:
        """``fn`` applied to every tensor."""
        return Tree({name: fn(tensor) for name, tensor in self.items()})

    def clone(self) -> Tree:
        """A copy that shares no memory with this tree."""
        return self.map(lambda t: t.detach().clone())

    def lerp(self, other: Tree, weight: float | Tensor | Tree) -> Tree:
        """``self + weight * (other - self)``, exact at 0 and 1; ``weight`` is a number, or a tree of them."""
        return self._with(
            other, lambda name, a, b: torch.lerp(a, b, weight[name] if isinstance(weight, Tree) else weight)
        )

    def descend(self, gradient: Tree, lr: float) -> Tree:
        """``self - lr * gradient``, with the bits of an SGD step (``a - lr * b`` would round twice)."""
        return self._with(gradient, lambda _, a, b: torch.add(a, b, alpha=-lr))

    def __add__(self, other: Tree) -> Tree:
        return self._with(other, lambda _, a, b: a + b)

    def __sub__(self, other: Tree) -> Tree:
        return self._with(other, lambda _, a, b: a - b)

    def __mul__(self, factor: float | Tensor | Tree) -> Tree:
        if isinstance(factor, Tree):
            return self._with(factor, lambda _, a, b: a * b)
        return self.map(lambda t: t * factor if t.is_floating_point() else t.clone())

    __rmul__ = __mul__

    def __or__(self, other: Tree) -> Tree:
        """The union; where both have a name, the right one's tensor."""
        return Tree(self._tensors | other._tensors)

    def _with(self, other: Tree, fn: Callable[[str, Tensor, Tensor], Tensor]) -> Tree:
        if strange := [name for name in other if name not in self]:
            raise KeyError(f"the right tree has tensors that the left one lacks: {', '.join(strange[:3])}")
        return Tree(
            {
                name: a if name not in other else fn(name, a, other[name]) if a.is_floating_point() else a.clone()
                for name, a in self.items()
            }
        )


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors have the same type, shape and bytes."""
    if a is b:
        return True
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return a.numel() == 0 or torch.equal(_bytes(a), _bytes(b))  # an empty tensor may have a stride that no view takes


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


@dataclass(frozen=True)
class Part:
    """A set of a model's tensors, as a value.

    Every tensor carries tags: the name of its part (``backbone``, ``head``, or a module that a method added), ``norm``
    if it belongs to a normalisation layer, ``buffer`` if it is not a parameter. ``Part.of(tag)`` holds the tensors with
    that tag; ``|``, ``&`` and ``-`` combine sets.
    """

    op: Literal["all", "none", "tag", "or", "and", "minus"]
    operands: tuple[Part, ...] = ()
    tag: str = ""

    ALL: ClassVar[Part]
    NONE: ClassVar[Part]
    BACKBONE: ClassVar[Part]
    HEAD: ClassVar[Part]
    NORM: ClassVar[Part]
    BUFFER: ClassVar[Part]
    PARAMETERS: ClassVar[Part]

    @staticmethod
    def of(tag: str) -> Part:
        """The tensors that carry ``tag``."""
        return Part("tag", tag=tag)

    def holds(self, tags: frozenset[str]) -> bool:
        """Whether a tensor with these tags belongs to the set."""
        match self.op:
            case "all":
                return True
            case "none":
                return False
            case "tag":
                return self.tag in tags
            case "or":
                return any(part.holds(tags) for part in self.operands)
            case "and":
                return all(part.holds(tags) for part in self.operands)
            case "minus":
                return self.operands[0].holds(tags) and not self.operands[1].holds(tags)

    def __or__(self, other: Part) -> Part:
        return self if other == Part.NONE else other if self == Part.NONE else Part("or", (self, other))

    def __and__(self, other: Part) -> Part:
        return self if other == Part.ALL else other if self == Part.ALL else Part("and", (self, other))

    def __sub__(self, other: Part) -> Part:
        return self if other == Part.NONE else Part("minus", (self, other))

    def __repr__(self) -> str:
        if self.op == "tag":
            return self.tag
        if not self.operands:
            return self.op
        sign = {"or": " | ", "and": " & ", "minus": " - "}[self.op]
        return "(" + sign.join(map(repr, self.operands)) + ")"


Part.ALL = Part("all")
Part.NONE = Part("none")
Part.BACKBONE = Part.of("backbone")
Part.HEAD = Part.of("head")
Part.NORM = Part.of("norm")
Part.BUFFER = Part.of("buffer")
Part.PARAMETERS = Part.ALL - Part.BUFFER
