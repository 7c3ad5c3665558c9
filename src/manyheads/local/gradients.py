"""What a step descends along: the gradients of a loss, proximal terms in few passes over the weights."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from manyheads.contract.trainer import Proximal, Terms
from manyheads.local.steps import named, tensors, total


def gradients(terms: Terms, parameters: Sequence[Tensor]) -> tuple[dict[str, Tensor], list[Tensor | None]]:
    """The terms' values, and the gradients of their sum.

    Automatic differentiation of a proximal term moves ten times the weights' memory; by hand it is seven.

    Args:
        terms: of a loss.
        parameters: the leaves that are trained.

    Returns:
        The values by name, and a gradient for every parameter that the sum depends on, else None.
    """
    places = {id(parameter): place for place, parameter in enumerate(parameters)}
    terms = named(terms)
    pulls = {name: term for name, term in terms.items() if isinstance(term, Proximal) and _only(term, places)}
    others = {name: term for name, term in terms.items() if name not in pulls}
    rest = tensors(others) if others else {}
    found: list[Tensor | None] = [None] * len(parameters)
    if rest and (not pulls or any(value.requires_grad for value in rest.values())):
        found = list(torch.autograd.grad(total(rest), parameters, allow_unused=True))
    values = rest | {name: _pull(term, places, found) for name, term in pulls.items()}
    return {name: values[name] for name in terms}, found


def _only(term: Proximal, places: dict[int, int]) -> bool:
    """Whether a term depends on no more than the parameters themselves, and its gradients are like them."""
    return isinstance(term.weight, int | float) and all(
        (id(held) in places or not held.requires_grad)
        and not near.requires_grad
        and (held.shape, held.dtype) == (near.shape, near.dtype)
        for held, near in ((held, term.reference[name]) for name, held in term.params.items())
    )


@torch.no_grad()
def _pull(term: Proximal, places: dict[int, int], found: list[Tensor | None]) -> Tensor:
    """Adds a term's gradients to those that are found; returns its value."""
    squared = torch.zeros(())
    for name, parameter in term.params.items():
        apart = parameter - term.reference[name]
        flat = apart.flatten()
        squared = squared + torch.dot(flat, flat)
        place = places.get(id(parameter))
        if place is not None:
            # never in place: a gradient may be another parameter's too, or one number that stands for many
            found[place] = _sum(found[place], apart, term.weight)
    return term.weight / 2 * squared


def _sum(gradient: Tensor | None, apart: Tensor, weight: float) -> Tensor:
    """``gradient + weight * apart``, in the memory of ``apart``."""
    return apart.mul_(weight) if gradient is None else torch.add(gradient, apart, alpha=weight, out=apart)
