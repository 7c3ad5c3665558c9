"""``Network``: the modules of a model without weights, and their binding to a tree."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar, cast

import torch
from torch import Generator, Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from manyheads.contract.model import Model, Module
from manyheads.contract.tree import Tree
from manyheads.local.precision import in_half
from manyheads.models.dropout import Dropout

_NORMS = (_NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)


class Network:
    """A network's parts by name, as a skeleton on the meta device, which threads may share.

    Attributes:
        initial: the weights that the modules had. A tensor that several layers share stands under its first name.
        tags: of every tensor: its part's name, ``norm`` for a normalisation layer's, ``buffer`` for a buffer, and
            ``frozen`` for a parameter that the network's author does not want trained.
        names: by part, the names of all tensors that it uses, also of those that stand under another part's name.
        bare: the parts that have no parameters.
    """

    def __init__(self, parts: Mapping[str, nn.Module]) -> None:
        modules = nn.ModuleDict(parts)
        self.initial = Tree(
            {
                name: getattr(owner, leaf).detach().clone(memory_format=torch.contiguous_format)
                for name, [(owner, leaf), *_] in _slots(modules)
            }
        )
        self.tags = _tags(modules)
        inside = {name: set(part.modules()) for name, part in parts.items()}
        self.names = {
            part: [name for name, places in _slots(modules) if any(owner in owners for owner, _ in places)]
            for part, owners in inside.items()
        }
        self._skeleton = copy.deepcopy(modules).eval()
        for _, places in _slots(self._skeleton):
            [(owner, leaf), *_] = places
            _put(places, getattr(owner, leaf).detach().to("meta"))
        self._copy = copy.deepcopy if any(map(_holds_more, self._skeleton.modules())) else _twin
        self.bare = {name for name, part in parts.items() if not any(True for _ in part.parameters())}
        self._empty = {name for name in self.bare if not parts[name].state_dict()}  # in no tree
        self._wrap: Callable[[nn.Module], Module] = _as_it_is

    def half(self) -> Network:
        """The same network with the products of its parts in bf16; see ``precision.in_half``."""
        network = copy.copy(self)
        network._wrap = in_half
        return network

    def model(self, tree: Tree) -> Model:
        """``tree`` as a frozen model in eval mode. It may lack whole parts that are never called."""
        return self.bind(tree).model

    def bind(self, tree: Tree, trained: Collection[str] = (), bare: Collection[str] = ()) -> Bound:
        """The modules holding the tensors of ``tree`` themselves; ``trained`` names those that get gradients.

        Parts with a trained parameter are in train mode, except layers in them of which none is trained; so are those
        parts without parameters that ``bare`` names. The rest is in eval mode.
        """
        present = {name.partition(".")[0] for name in tree} | self._empty
        modules = nn.ModuleDict({name: part for name, part in self._skeleton.items() if name in present})
        bound = Bound(self._copy(modules), self.model, self._wrap)
        bound.load(tree)
        bound.train(trained, bare)
        return bound


class Bound:
    """Modules that hold a tree's tensors."""

    def __init__(
        self, modules: nn.ModuleDict, at: Callable[[Tree], Model], wrap: Callable[[nn.Module], Module]
    ) -> None:
        self.modules = modules
        self._slots = _slots(modules)
        self.calls: dict[str, Module] = {name: wrap(part) for name, part in modules.items()}
        self._at = at

    def load(self, tree: Tree) -> None:
        """Holds the tensors of ``tree`` from now on."""
        if missing := [name for name, _ in self._slots if name not in tree]:
            raise KeyError(
                f"the tree holds only a piece of {missing[0].partition('.')[0]!r}: it lacks {', '.join(missing[:3])}"
            )
        for name, places in self._slots:
            _put(places, tree[name])
        self.model = Model(self.calls, Tree(dict(self.modules.named_parameters())), self._at)

    def hold(self, tree: Tree, at: Callable[[Tree], Model]) -> Model:
        """A model of the tensors themselves, for ``torch.func``, where no parameter may be made of them.

        Modes stay as they are; ``at`` is the model's.
        """
        for name, places in self._slots:
            for owner, leaf in places:
                held: dict[str, Any] = owner._buffers if leaf in owner._buffers else owner._parameters
                held[leaf] = tree[name]
        return Model(self.calls, Tree(dict(self.modules.named_parameters())), at)

    def fits(self, tree: Tree) -> bool:
        """Whether ``tree`` has the tensors that these modules hold, and no part more."""
        return {name.partition(".")[0] for name in tree} == {name.partition(".")[0] for name, _ in self._slots}

    def train(self, trained: Collection[str], bare: Collection[str] = ()) -> None:
        """Sets which parameters get gradients, and the modes that follow from it: ``live`` parts are in train mode."""
        self.modules.eval()
        self.trained = []
        for name, parameter in self.modules.named_parameters():
            if parameter.requires_grad != (name in trained):  # torch.func forbids to set it, even to what it is
                parameter.requires_grad_(name in trained)
            if name in trained:
                self.trained.append((name, parameter))
        self.live = {name for name, part in self.modules.items() if any(p.requires_grad for p in part.parameters())}
        self.live |= self.modules.keys() & set(bare)
        for name in self.live:
            _train_mode(self.modules[name])
        self.dropouts = [m for m in self.modules.modules() if isinstance(m, Dropout) and m.training and m.p]

    def draw_from(self, generator: Generator) -> None:
        """Lets every dropout layer draw its masks from ``generator``."""
        for dropout in self.dropouts:
            dropout.generator = generator

    def tree(self) -> Tree:
        """The tensors now held, detached."""
        return Tree({name: getattr(owner, leaf).detach() for name, [(owner, leaf), *_] in self._slots})


def _as_it_is(part: nn.Module) -> Module:
    return part


T = TypeVar("T", bound=nn.Module)


def _twin(module: T, made: dict[int, nn.Module] | None = None) -> T:
    """A module of its own with the same settings. ``copy.deepcopy`` takes longer than to test a small head."""
    made = {} if made is None else made
    if id(module) not in made:
        twin = made[id(module)] = object.__new__(type(module))  # copy.copy fails on parametrised modules
        twin.__dict__.update(module.__dict__)
        twin._parameters, twin._buffers = dict(module._parameters), dict(module._buffers)
        twin._modules = {name: child and _twin(child, made) for name, child in module._modules.items()}
    return cast(T, made[id(module)])


def _train_mode(module: nn.Module) -> None:
    own = list(module.parameters(recurse=False))
    module.training = not own or any(p.requires_grad for p in own)
    for child in module.children():
        _train_mode(child)


Place = tuple[nn.Module, str]


def _slots(modules: nn.ModuleDict) -> list[tuple[str, list[Place]]]:
    """Every parameter and persistent buffer: its first name, and all places that hold it (several where it is tied)."""
    kept = modules.state_dict()
    found: dict[int, tuple[str, list[Place]]] = {}
    for prefix, owner in modules.named_modules():
        for leaf, tensor in (*owner._parameters.items(), *owner._buffers.items()):
            if tensor is not None and f"{prefix}.{leaf}" in kept:
                found.setdefault(id(tensor), (f"{prefix}.{leaf}", []))[1].append((owner, leaf))
    return list(found.values())


def _put(places: list[Place], tensor: Tensor) -> None:
    parameter = nn.Parameter(tensor, requires_grad=False)
    for owner, leaf in places:
        if leaf in owner._buffers:
            owner._buffers[leaf] = tensor
        else:
            owner._parameters[leaf] = parameter


def _holds_more(module: nn.Module) -> bool:
    """Whether a shallow copy would share more than settings: modules or tensors outside torch's own tables."""
    own = [value for name, value in vars(module).items() if name not in _TABLES]
    return bool(module._non_persistent_buffers_set) or any(map(_refers, own))


def _refers(value: object) -> bool:
    if isinstance(value, dict):
        return any(map(_refers, value.values()))
    return isinstance(value, nn.Module | Tensor) or (isinstance(value, list | tuple | set) and any(map(_refers, value)))


_TABLES = frozenset(vars(nn.Module()))


def _tags(modules: nn.ModuleDict) -> dict[str, frozenset[str]]:
    tags = {}
    for name, [(owner, leaf), *_] in _slots(modules):
        norm = {"norm"} if isinstance(owner, _NORMS) else set()
        buffer = {"buffer"} if leaf in owner._buffers else set()
        frozen = set() if buffer or getattr(owner, leaf).requires_grad else {"frozen"}
        tags[name] = frozenset({name.partition(".")[0]} | norm | buffer | frozen)
    return tags


def channels_last(tree: Tree) -> Tree:
    """A copy whose 4-D tensors lie in channels-last order, the layout that training uses."""
    return tree.map(
        lambda t: t.detach().clone(memory_format=torch.channels_last if t.dim() == 4 else torch.contiguous_format)
    )
