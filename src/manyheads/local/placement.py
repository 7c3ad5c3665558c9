"""Training on another device: a trainer that sends there what it is given, and brings back what comes of it.

Methods, records, aggregation and random streams stay on the CPU, whatever the device. Images go there once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Generator, Tensor

from manyheads.contract.context import Context
from manyheads.contract.data import Batch, Data, Drawn, Mapped, Pixels, Source
from manyheads.contract.model import Model
from manyheads.contract.trainer import Grad, Loss, Optim, Plan, Trainer
from manyheads.contract.tree import Part, Tree
from manyheads.errors import InputError
from manyheads.local.stacked.values import apart


class Placement:
    """A device, and what has been sent there to stay.

    Args:
        name: such as ``"cuda"``.

    Raises:
        InputError: there is no such device here.
    """

    def __init__(self, name: str) -> None:
        if name == "cuda" and not torch.cuda.is_available():
            raise InputError("run.device = 'cuda': there is no CUDA device here, or this torch cannot use it; take cpu")
        self.device = torch.device(name)
        self._images: dict[int, tuple[Tensor, Tensor]] = {}

    def there(self, value: Any) -> Any:
        """A value with its tensors on the device; see ``stacked.values.apart`` for what it may be."""
        return _sent(value, self.device)

    def data(self, data: Data) -> Data:
        """Data whose batches are on the device. What is random is drawn on the CPU, and maps run there."""
        constants = self.there(dict(data.constants))
        return replace(
            data,
            pixels=self._source(data.pixels),
            y=data.y.to(self.device),
            columns={name: self.there(column) for name, column in data.columns.items()},
            constants=constants,
            maps=tuple(_Map(fn, self.device, data.constants, constants) for fn in data.maps),
            draws={name: _Draw(fn, self.device) for name, fn in data.draws.items()},
        )

    def _source(self, source: Source) -> Source:
        if not isinstance(source, Pixels):
            return _Sent(source, self.device)
        images = source.images
        if id(images) not in self._images:
            self._images[id(images)] = images, images.to(self.device)
        return replace(source, images=self._images[id(images)][1])


def home(value: Any) -> Any:
    """A value with its tensors on the CPU."""
    return _sent(value, torch.device("cpu"))


def _sent(value: Any, device: torch.device) -> Any:
    tensors, rebuild = apart(value)
    return rebuild(iter([tensor.to(device) for tensor in tensors]))


class PlacedTrainer:
    """``trainer``, with everything on the device of ``placement``."""

    def __init__(self, trainer: Trainer, placement: Placement) -> None:
        self._trainer, self._placement = trainer, placement

    def model(self, tree: Tree) -> Model:
        """``tree`` as a frozen model on the device, in eval mode."""
        return self._trainer.model(self._placement.there(tree))

    def rowwise(self, fn: Callable[[Tensor], Tensor], data: Data) -> Tensor:
        """``fn`` of every sample's x, which is on the device; the answer is not."""
        return self._trainer.rowwise(fn, self._placement.data(data)).cpu()

    def fit(self, ctx: Context, model: Tree, loss: Loss, data: Data, trains: Part, plan: Plan, optim: Optim) -> Tree:
        """See ``Context.fit``."""
        there = self._placement
        trained: Tree = home(self._trainer.fit(ctx, there.there(model), loss, there.data(data), trains, plan, optim))
        return trained

    def gradient(self, ctx: Context, model: Tree, loss: Loss, data: Data, trains: Part) -> Tree:
        """See ``Context.gradient``."""
        there = self._placement
        found: Tree = home(self._trainer.gradient(ctx, there.there(model), loss, there.data(data), trains))
        return found

    def scan(
        self, ctx: Context, carry: Any, step: Callable[[Any, Any, Grad], Any], data: Data, plan: Plan, width: int
    ) -> Any:
        """See ``Context.scan``."""
        there = self._placement
        return home(self._trainer.scan(ctx, there.there(carry), step, there.data(data), plan, width))


@dataclass(frozen=True)
class _Sent:
    source: Source
    device: torch.device

    @property
    def mean(self) -> tuple[float, ...]:
        return self.source.mean

    @property
    def std(self) -> tuple[float, ...]:
        return self.source.std

    def __call__(self, rows: Tensor) -> Tensor:
        return self.source(rows).to(self.device)


@dataclass(frozen=True)
class _Map:
    """``fn`` on the CPU. Constants do not travel with every batch: they are on both sides, as the same objects."""

    fn: Mapped
    device: torch.device
    here: Mapping[str, Any]
    there: Mapping[str, Any]

    def __call__(self, batch: Batch, generator: Generator) -> Batch:
        arrived = _moved(batch, torch.device("cpu"), self.there, self.here)
        return _moved(self.fn(arrived, generator), self.device, self.here, self.there)


@dataclass(frozen=True)
class _Draw:
    fn: Drawn
    device: torch.device

    def __call__(self, n: int, generator: Generator) -> Tensor:
        return self.fn(n, generator).to(self.device)


def _moved(batch: Batch, device: torch.device, left: Mapping[str, Any], found: Mapping[str, Any]) -> Batch:
    """The batch on ``device``; a constant that it has from ``left`` is the one in ``found``."""

    def moved(name: str, value: Any) -> Any:
        return found[name] if name in left and value is left[name] else _sent(value, device)

    return batch.replace(
        **{name: moved(name, value) for name, value in {**batch.extra, "x": batch.x, "y": batch.y}.items()}
    )
