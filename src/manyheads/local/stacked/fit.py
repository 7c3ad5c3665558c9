"""``fit`` of several clients at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import grad

from manyheads.contract.data import Batch
from manyheads.contract.trainer import Proximal
from manyheads.contract.tree import Tree
from manyheads.local.network import Network, channels_last
from manyheads.local.rows import CachedPart
from manyheads.local.stacked.crowd import Crowd, Values, check_close
from manyheads.local.stacked.network import Functional, Recalled
from manyheads.local.stacked.optim import StackedDescent
from manyheads.local.stacked.request import Fit
from manyheads.local.stacked.values import StackedBatch, pad
from manyheads.local.steps import bare_parts, tensors, total, trained_names


class StackedFit(Crowd[Fit]):
    """See ``local.training.LocalTrainer.fit``.

    Args:
        network: the clients'.
        requests: alike ones, of which each has something to train.

    Raises:
        NotStackableError: what is trained cannot be stacked.
    """

    def __init__(self, network: Network, requests: Sequence[Fit]) -> None:
        super().__init__(requests)
        first = self.requests[0]
        self._names = trained_names(first.ctx, first.model, first.trains)
        bare = bare_parts(network, first.trains)
        self._functional = Functional(network, first.model, self._names, bare, self.inside)
        self._bounds = [network.bind(channels_last(request.model), self._names, bare) for request in self.requests]
        self.feed(self._bounds)
        self._recalled = {
            name: Recalled(part)
            for name, part in self._functional.calls.items()
            if isinstance(self._bounds[0].calls[name], CachedPart)
        }
        self._functional.calls.update(self._recalled)
        trees = [bound.tree() for bound in self._bounds]
        self._frozen = {name: torch.stack([tree[name] for tree in trees]) for name in first.model}
        self._trained = {name: self._frozen.pop(name) for name in self._names}
        self._descent: StackedDescent | None = None

    def _step(self, number: int, each: list[list[Batch]], stacked: list[StackedBatch]) -> list[Values]:
        batches = [batch for [batch] in each]
        k = self._suspect(stacked)
        alone = None if k is None else self._alone(k, batches[k])
        known = {name: self._known(name, batches, stacked[0].size) for name in self._asked}
        gradients, terms = self._for_each(self._gradient, stacked, self._trained, self._frozen, known)
        if alone is not None:
            for name, term in alone.items():
                check_close(f"its loss {name!r}", terms[name][k], term)
        assert self._descent is not None, "the first step has a suspect"
        self._descent.step(gradients)
        return [terms]

    def _gradient(
        self,
        batches: list[Batch],
        trained: dict[str, Tensor],
        frozen: dict[str, Tensor],
        known: dict[str, Tensor],
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """One client's gradient and loss terms; ``known`` is what frozen parts say of its batch."""
        [batch] = batches
        self.inside.use(batch.rows)
        for name, part in self._recalled.items():
            part.x, part.answer = batch.x, known.get(name)

        def objective(trained: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
            terms = tensors(self.requests[0].loss(self._functional.model(Tree(trained | frozen)), batch))
            return total(terms), terms

        found: tuple[dict[str, Tensor], dict[str, Tensor]] = grad(objective, has_aux=True)(trained)
        return found

    def _alone(self, k: int, batch: Batch) -> Values:
        """A client's loss as it is where it trains alone. Notes what it depends on, and what it asks frozen parts."""
        bound, watched = self._bounds[k], {name: Recalled(self._bounds[k].calls[name]) for name in self._recalled}
        bound.calls.update(watched)
        for part in watched.values():
            part.x = batch.x
        bound.load(bound.tree() | Tree({name: tensor[k] for name, tensor in self._trained.items()}))
        parameters = {name: p for name, p in bound.modules.named_parameters() if name in self._trained}
        for parameter in parameters.values():
            parameter.requires_grad_()
        said = self.requests[k].loss(bound.model, batch)
        terms = tensors(said)
        self.proximal = {name for name, term in said.items() if isinstance(term, Proximal)}
        self._asked = [name for name, part in watched.items() if part.asked]
        if self._descent is None:
            found = torch.autograd.grad(total(terms), list(parameters.values()), allow_unused=True)
            unused = frozenset(name for name, gradient in zip(parameters, found, strict=True) if gradient is None)
            self._descent = StackedDescent(self.requests[k].ctx, self._trained, self.requests[k].optim, unused)
        return terms

    def _known(self, name: str, batches: Sequence[Batch], size: int) -> Tensor:
        """What each client's frozen part says of its batch, ``[K, size, ...]``."""
        answers = [bound.calls[name](batch.x) for bound, batch in zip(self._bounds, batches, strict=False)]
        return torch.stack([pad(answer, size) for answer in answers])

    def _result(self, k: int) -> Tree:
        return self.requests[k].model | Tree({name: tensor[k].clone() for name, tensor in self._trained.items()})

    def _keep(self, count: int) -> None:
        self._trained = {name: tensor[:count] for name, tensor in self._trained.items()}
        self._frozen = {name: tensor[:count] for name, tensor in self._frozen.items()}
        if self._descent is not None:
            self._descent.keep(count)


def fit(network: Network, requests: Sequence[Fit], stopped: Callable[[], bool]) -> list[tuple[Fit, Any]]:
    """Answers alike requests at once: a tree each, or a RunError for a client whose loss is not finite.

    Raises:
        NotStackableError: the loss cannot be stacked.
    """
    return StackedFit(network, requests).run(stopped)
