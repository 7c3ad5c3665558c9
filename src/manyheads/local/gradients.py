"""What a step descends along: the gradients of a loss, proximal terms apart from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from manyheads.contract.trainer import Proximal, Terms
from manyheads.local.steps import named, tensors, total


class Pull(NamedTuple):
    """A piece of a parameter's gradient, ``weight * (parameter - reference)``.

    Attributes:
        place: the parameter's, among all that are trained.
        weight: at least 0.
        reference: like the parameter.
    """

    place: int
    weight: float
    reference: Tensor


class Slope(NamedTuple):
    """Where a step goes.

    Attributes:
        values: the loss terms that were worked out, by name.
        gradients: by parameter; None where nothing but pulls depends on it.
        pulls: what is to be added to the gradients.
    """

    values: dict[str, Tensor]
    gradients: list[Tensor | None]
    pulls: list[Pull]


def slope(terms: Terms, parameters: Sequence[Tensor], measure: bool = True) -> Slope:
    """The terms' values, and the gradients of their sum.

    Args:
        terms: of a loss.
        parameters: the leaves that are trained.
        measure: whether the values of proximal terms are wanted, which cost as much as a step along their gradients.
    """
    places = {id(parameter): place for place, parameter in enumerate(parameters)}
    terms = named(terms)
    proximal = {name: term for name, term in terms.items() if isinstance(term, Proximal) and _only(term, places)}
    others = {name: term for name, term in terms.items() if name not in proximal}
    values = tensors(others) if others else {}
    found: list[Tensor | None] = [None] * len(parameters)
    if values and (not proximal or any(value.requires_grad for value in values.values())):
        found = list(torch.autograd.grad(total(values), parameters, allow_unused=True))
    if measure:
        values |= {name: _value(term) for name, term in proximal.items()}
    pulls = [
        Pull(places[id(held)], term.weight, term.reference[name])
        for term in proximal.values()
        for name, held in term.params.items()
        if id(held) in places
    ]
    said = [name for name, term in terms.items() if measure or not isinstance(term, Proximal)]
    return Slope({name: values[name] for name in said}, found, pulls)


def _only(term: Proximal, places: dict[int, int]) -> bool:
    """Whether a term depends on no more than the parameters themselves, and its gradients are like them."""
    return isinstance(term.weight, int | float) and all(
        (id(held) in places or not held.requires_grad)
        and not near.requires_grad
        and (held.shape, held.dtype) == (near.shape, near.dtype)
        for held, near in ((held, term.reference[name]) for name, held in term.params.items())
    )


@torch.no_grad()
def _value(term: Proximal) -> Tensor:
    """As automatic differentiation has it, but for rounding, in fewer passes over the weights."""
    apart = [(held - term.reference[name]).flatten() for name, held in term.params.items()]
    return term.weight / 2 * sum((torch.dot(flat, flat) for flat in apart), start=torch.zeros(()))


def with_pull(gradient: Tensor | None, parameter: Tensor, pull: Pull | None) -> Tensor | None:
    """The gradient with a pull added, in memory of its own: one gradient may be several parameters'."""
    if pull is None:
        return gradient
    apart = parameter.detach() - pull.reference
    return apart.mul_(pull.weight) if gradient is None else torch.add(gradient, apart, alpha=pull.weight, out=apart)
