"""``scan`` of several clients at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.func import grad

from manyheads.contract.data import Batch
from manyheads.contract.trainer import Grad, Loss
from manyheads.contract.tree import Part, Tree
from manyheads.errors import RunError
from manyheads.local.network import Network
from manyheads.local.scanning import Buffers, Gradient
from manyheads.local.stacked.crowd import Crowd, Values, check_close
from manyheads.local.stacked.network import Functional
from manyheads.local.stacked.request import Scan
from manyheads.local.stacked.values import NotStackableError, StackedBatch, apart, pick, stack
from manyheads.local.steps import bare_parts, tensors, total, trained_names

Call = tuple[frozenset[str], Tensor]  # of ``grad``: the parameters that have a gradient, and the loss


class StackedScan(Crowd[Scan]):
    """See ``local.training.LocalTrainer.scan``.

    Args:
        network: the clients'.
        requests: alike ones.
    """

    def __init__(self, network: Network, requests: Sequence[Scan]) -> None:
        super().__init__(requests)
        self._network = network
        self.feed([None] * len(requests))
        self._carry, self._shape = stack([request.carry for request in self.requests])
        self._functionals: dict[tuple[tuple[str, ...], Part], Functional] = {}
        self._calls: list[Call] = []  # of one client, alone
        self._terms: list[Values] = []

    def _step(self, number: int, each: list[list[Batch]], stacked: list[StackedBatch]) -> list[Values]:
        k = self._suspect(stacked)
        alone = None if k is None else self._alone(k, number, each[k])
        terms: list[Values]
        self._carry, terms = self._for_each(self._rule, stacked, self._carry)
        if k is not None:
            if len(terms) != len(self._calls):
                raise NotStackableError("its step rule does not always ask for as many gradients")
            for some, (_, value) in zip(terms, self._calls, strict=True):
                check_close("its loss", total(some)[k], value)
            for mine, wanted in zip(self._carry, apart(alone)[0], strict=True):
                check_close("its step", mine[k], wanted)
        return terms

    def _rule(self, batches: list[Batch], carry: list[Tensor]) -> tuple[list[Tensor], list[Values]]:
        """One client's carry after a step, and its loss terms, call by call."""
        self._terms = []
        after = self.requests[0].step(self._shape(iter(carry)), _given(batches), self._gradient)
        tensors, self._shape = apart(after)
        return tensors, self._terms

    def _gradient(
        self, loss: Loss, tree: Tree, b: Batch, trains: Part = Part.ALL, draw: int | None = None, /
    ) -> tuple[Tree, Tensor]:
        """The ``grad`` of the step rule."""
        functional, names = self._functional(tree, trains)
        self.inside.use(b.rows, draw)

        def objective(trained: dict[str, Tensor]) -> tuple[Tensor, tuple[Tensor, dict[str, Tensor]]]:
            terms = tensors(loss(functional.model(tree | Tree(trained)), b))
            value = total(terms)
            return value, (value, terms)

        found, (value, terms) = grad(objective, has_aux=True)({name: tree[name] for name in names})
        self._terms.append(terms)
        used, _ = self._calls[len(self._terms) - 1]
        return Tree({name: gradient for name, gradient in found.items() if name in used}), value

    def _functional(self, tree: Tree, trains: Part) -> tuple[Functional, list[str]]:
        names = trained_names(self.requests[0].ctx, tree, trains)
        key = (tuple(tree), trains)
        if key not in self._functionals:
            bare = bare_parts(self._network, trains)
            self._functionals[key] = Functional(self._network, tree, names, bare, self.inside)
        return self._functionals[key], names

    def _alone(self, k: int, number: int, batches: list[Batch]) -> Any:
        """A client's carry after a step that it makes alone; what it asks for on the way is remembered."""
        request = self.requests[k]
        buffers = Buffers(request.ctx)
        gradient = Gradient(request.ctx, self._network, buffers, request.plan.phase)
        gradient.start(request.steps[number][0])
        self._calls = []

        def watched(
            loss: Loss, tree: Tree, b: Batch, trains: Part = Part.ALL, draw: int | None = None, /
        ) -> tuple[Tree, Tensor]:
            self._functional(tree, trains)  # modules are made here: torch.func forbids to say what is trained
            found, value = gradient(loss, tree, b, trains, draw)
            self._calls.append((frozenset(found), value))
            return found, value

        grad: Grad = watched
        try:
            return request.step(buffers.copied(pick(self._carry, self._shape, k)), _given(batches), grad)
        except RunError as error:  # it says the same, in its place, when the client trains alone
            raise NotStackableError("") from error

    def _result(self, k: int) -> Any:
        return pick(self._carry, self._shape, k)

    def _keep(self, count: int) -> None:
        self._carry = [tensor[:count] for tensor in self._carry]


def _given(batches: list[Batch]) -> Any:
    return batches[0] if len(batches) == 1 else tuple(batches)


def scan(network: Network, requests: Sequence[Scan], stopped: Callable[[], bool]) -> list[tuple[Scan, Any]]:
    """Answers alike requests at once: a carry each, or a RunError for a client whose loss is not finite.

    Raises:
        NotStackableError: the step rule cannot be stacked.
    """
    return StackedScan(network, requests).run(stopped)
