"""``Network``: the modules of a model without weights, and their binding to a tree."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping

import torch
from torch import Generator, Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from manyheads.contract.model import Model, Module
from manyheads.contract.tree import Tree
from manyheads.models.dropout import Dropout

_NORMS = (_NormBase, nn.GroupNorm, nn.LayerNorm, nn.LocalResponseNorm)


class Network:
    """A network's parts by name, as a skeleton on the meta device. It costs no memory; threads may share it.

    Attributes:
        initial: the weights that the modules had.
        tags: of every tensor: its part's name, ``norm`` for a normalisation layer's, ``buffer`` for a buffer.
    """

    def __init__(self, parts: Mapping[str, nn.Module]) -> None:
        modules = nn.ModuleDict(parts)
        self.initial = Tree(modules.state_dict()).map(lambda t: t.detach().clone(memory_format=torch.contiguous_format))
        self.tags = _tags(modules)
        self._skeleton = copy.deepcopy(modules).eval()
        for _, owner, leaf in _slots(self._skeleton):
            _put(owner, leaf, getattr(owner, leaf).detach().to("meta"))
        self._bare = {name for name, part in self._skeleton.items() if not part.state_dict()}  # in no tree

    def model(self, tree: Tree) -> Model:
        """``tree`` as a frozen model in eval mode. It may lack whole parts that are never called."""
        return self.bind(tree).model

    def bind(self, tree: Tree, trained: Collection[str] = ()) -> Bound:
        """The modules holding the tensors of ``tree`` themselves; ``trained`` names those that get gradients.

        Parts with a trained parameter are in train mode, except layers in them of which none is trained; the rest is in
        eval mode.
        """
        present = {name.partition(".")[0] for name in tree} | self._bare
        modules = nn.ModuleDict({name: _twin(part, {}) for name, part in self._skeleton.items() if name in present})
        bound = Bound(modules, self.model)
        bound.load(tree)
        bound.train(trained)
        return bound


class Bound:
    """Modules that hold a tree's tensors."""

    def __init__(self, modules: nn.ModuleDict, at: Callable[[Tree], Model]) -> None:
        self.modules = modules
        self._slots = _slots(modules)
        self.calls: dict[str, Module] = dict(modules.items())
        self._at = at

    def load(self, tree: Tree) -> None:
        """Holds the tensors of ``tree`` from now on."""
        if missing := [name for name, _, _ in self._slots if name not in tree]:
            raise KeyError(
                f"the tree holds only a piece of {missing[0].partition('.')[0]!r}: it lacks {', '.join(missing[:3])}"
            )
        for name, owner, leaf in self._slots:
            _put(owner, leaf, tree[name])
        self.model = Model(self.calls, Tree(dict(self.modules.named_parameters())), self._at)

    def fits(self, tree: Tree) -> bool:
        """Whether ``tree`` has the tensors that these modules hold, and no part more."""
        return {name.partition(".")[0] for name in tree} == {name.partition(".")[0] for name, _, _ in self._slots}

    def train(self, trained: Collection[str]) -> None:
        """Sets which parameters get gradients, and the modes that follow from it."""
        self.modules.eval()
        self.trained = []
        for name, parameter in self.modules.named_parameters():
            parameter.requires_grad_(name in trained)
            if name in trained:
                self.trained.append((name, parameter))
        for part in self.modules.values():
            if any(p.requires_grad for p in part.parameters()):
                _train_mode(part)
        self.dropouts = [m for m in self.modules.modules() if isinstance(m, Dropout) and m.training]

    def draw_from(self, generator: Generator) -> None:
        """Lets every dropout layer draw its masks from ``generator``."""
        for dropout in self.dropouts:
            dropout.generator = generator

    def tree(self) -> Tree:
        """The tensors now held, detached."""
        return Tree({name: getattr(owner, leaf).detach() for name, owner, leaf in self._slots})


def _twin(module: nn.Module, made: dict[int, nn.Module]) -> nn.Module:
    """A module of its own with the same settings. ``copy.deepcopy`` takes longer than to test a small head."""
    if id(module) not in made:
        twin = made[id(module)] = copy.copy(module)
        twin._parameters, twin._buffers = dict(module._parameters), dict(module._buffers)
        twin._modules = {name: child and _twin(child, made) for name, child in module._modules.items()}
    return made[id(module)]


def _train_mode(module: nn.Module) -> None:
    own = list(module.parameters(recurse=False))
    module.training = not own or any(p.requires_grad for p in own)
    for child in module.children():
        _train_mode(child)


def _slots(modules: nn.ModuleDict) -> list[tuple[str, nn.Module, str]]:
    """Where every parameter and persistent buffer lives: its full name, the module that owns it, its name there."""
    kept = modules.state_dict()
    places = [
        (prefix, owner, leaf)
        for prefix, owner in modules.named_modules()
        for leaf in (*owner._parameters, *owner._buffers)
    ]
    return [(f"{prefix}.{leaf}", owner, leaf) for prefix, owner, leaf in places if f"{prefix}.{leaf}" in kept]


def _put(owner: nn.Module, leaf: str, tensor: Tensor) -> None:
    if leaf in owner._buffers:
        owner._buffers[leaf] = tensor
    else:
        owner._parameters[leaf] = nn.Parameter(tensor, requires_grad=False)


def _tags(modules: nn.ModuleDict) -> dict[str, frozenset[str]]:
    tags = {}
    for name, owner, leaf in _slots(modules):
        norm = {"norm"} if isinstance(owner, _NORMS) else set()
        buffer = {"buffer"} if leaf in owner._buffers else set()
        tags[name] = frozenset({name.partition(".")[0]} | norm | buffer)
    return tags


def channels_last(tree: Tree) -> Tree:
    """A copy whose 4-D tensors lie in channels-last order, the layout that training uses."""
    return tree.map(
        lambda t: t.detach().clone(memory_format=torch.channels_last if t.dim() == 4 else torch.contiguous_format)
    )
