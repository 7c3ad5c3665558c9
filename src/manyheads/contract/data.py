"""A party's data as methods see it: ``Data`` describes it, a ``Batch`` is what a loss gets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Generator, Tensor

from manyheads.contract.tree import Tree

Column = Tensor | Callable[[Tensor], Tensor]
Constant = Tree | Tensor | float
Mapped = Callable[["Batch", Generator], "Batch"]
Drawn = Callable[[int, Generator], Tensor]


@dataclass(frozen=True)
class Pixels:
    """Images that many views share: uint8 ``[N, h, w, c]``, turned into normalised floats only when a batch is made.

    Attributes:
        images: all images of the data set, contiguous; a client's data is an index into it.
        mean: per channel, of pixels in [0, 1].
        std: per channel, of pixels in [0, 1].
    """

    images: Tensor
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __call__(self, rows: Tensor) -> Tensor:
        """The images ``rows``, int64 ``[n]``: float32 ``[n, c, h, w]`` in channels-last layout."""
        scale, shift = self._normalisation
        rows = rows.to(self.images.device)
        flat = self.images.flatten(1).index_select(0, rows)  # whole images at once: eight times as fast as by pixel
        return flat.float().mul_(scale).sub_(shift).view(-1, *self.images.shape[1:]).permute(0, 3, 1, 2)

    @cached_property
    def _normalisation(self) -> tuple[Tensor, Tensor]:
        """Scale and shift of an image's numbers, ``[h * w * c]``."""
        pixels = self.images.shape[1] * self.images.shape[2]
        scale = torch.tensor([1 / (255 * s) for s in self.std]).repeat(pixels)
        shift = torch.tensor([m / s for m, s in zip(self.mean, self.std, strict=True)]).repeat(pixels)
        return scale.to(self.images.device), shift.to(self.images.device)


class Source(Protocol):
    """Where the images of ``Data`` come from. ``Pixels`` is one."""

    @property
    def mean(self) -> tuple[float, ...]:
        """Per channel, of pixels in [0, 1]."""

    @property
    def std(self) -> tuple[float, ...]:
        """Per channel, of pixels in [0, 1]."""

    def __call__(self, rows: Tensor, /) -> Tensor:
        """The images ``rows``: float32 ``[len(rows), c, h, w]``, normalised."""


@dataclass(frozen=True)
class _Given:
    """Tensors as they are."""

    values: Tensor
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)

    def __call__(self, rows: Tensor) -> Tensor:
        return self.values[rows]


class Batch:
    """Some samples: ``b.x``, ``b.y``, and by name every column and constant of the data.

    Attributes:
        x: float ``[n, c, h, w]``, normalised, after augmentation.
        y: int64 ``[n]``.
        rows: int64 ``[n]``, the samples' places in their ``Data``.
        mask: float ``[n]``, 1 for a real sample and 0 for padding; None where all are real.
        extra: columns and constants by name.
    """

    def __init__(
        self, x: Tensor, y: Tensor, rows: Tensor, extra: Mapping[str, Any], mask: Tensor | None = None
    ) -> None:
        self.x, self.y, self.rows, self.mask = x, y, rows, mask
        self.extra = extra

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            return self.extra[name]
        except KeyError:
            have = ", ".join(["x", "y", *self.extra])
            raise AttributeError(
                f"the batch has no {name!r}; it has {have}; add it with data.with_() or data.given()"
            ) from None

    def __len__(self) -> int:
        return len(self.y)

    def mean(self, per_sample: Tensor) -> Tensor:
        """The mean of ``[n]`` values over the real samples."""
        if self.mask is None:
            return per_sample.mean()
        return (per_sample * self.mask).sum() / self.mask.sum()

    def replace(self, **fields: Tensor) -> Batch:
        """A copy with ``x``, ``y`` or columns replaced; for functions given to ``Data.map``."""
        own = {name: fields.pop(name) for name in ("x", "y") if name in fields}
        return Batch(own.get("x", self.x), own.get("y", self.y), self.rows, {**self.extra, **fields}, self.mask)


@dataclass(frozen=True)
class Data:
    """Samples of one party. Immutable: ``with_``, ``given`` and ``map`` return another view of the same images.

    Attributes:
        pixels: where images come from.
        index: int64 ``[n]``, this party's images in ``pixels``.
        y: int64 ``[n]``, labels.
        columns: per sample, a tensor ``[n, ...]`` or a function of x.
        constants: the same for every sample.
        maps: random functions of a batch, applied in order at every step.
        draws: random values per sample, drawn at every step.
    """

    pixels: Source
    index: Tensor
    y: Tensor
    columns: Mapping[str, Column] = field(default_factory=dict)
    constants: Mapping[str, Constant] = field(default_factory=dict)
    maps: tuple[Mapped, ...] = ()
    draws: Mapping[str, Drawn] = field(default_factory=dict)

    @classmethod
    def of(cls, x: Tensor, y: Tensor) -> Data:
        """Samples that are no images of a data set, such as features: ``x`` ``[n, ...]``, ``y`` ``[n]``."""
        return cls(_Given(x), torch.arange(len(y)), y)

    def __len__(self) -> int:
        return len(self.index)

    @property
    def mean(self) -> tuple[float, ...]:
        """Per channel: ``x * std + mean`` are pixels in [0, 1]."""
        return self.pixels.mean

    @property
    def std(self) -> tuple[float, ...]:
        """Per channel; see ``mean``."""
        return self.pixels.std

    def x(self, rows: Tensor) -> Tensor:
        """The images at ``rows`` of this data: float ``[len(rows), c, h, w]``, normalised, not augmented."""
        return self.pixels(self.index[rows])

    def take(self, rows: Tensor) -> Data:
        """The samples at ``rows``, with their columns."""
        columns = {
            name: column[rows] if isinstance(column, Tensor) else column for name, column in self.columns.items()
        }
        return replace(self, index=self.index[rows], y=self.y[rows], columns=columns)

    def with_(self, **columns: Column) -> Data:
        """Adds values per sample: a tensor ``[n, ...]``, or a frozen function of x ``[b, c, h, w] -> [b, ...]``.

        A function is run once for all samples where x never changes, and once a batch, on the augmented x, where there
        are maps.
        """
        self._free(columns)
        for name, column in columns.items():
            if isinstance(column, Tensor) and len(column) != len(self):
                raise ValueError(f"column {name!r} has {len(column)} values for {len(self)} samples")
        return replace(self, columns={**self.columns, **columns})

    def given(self, **constants: Constant) -> Data:
        """Adds constants of this party, such as anchors ``[classes, features]`` or the reference of a proximal term."""
        self._free(constants)
        return replace(self, constants={**self.constants, **constants})

    def map(self, fn: Mapped) -> Data:
        """Adds a random function of a batch, such as an augmentation. It draws from the generator that it is given."""
        return replace(self, maps=(*self.maps, fn))

    def draw(self, **columns: Drawn) -> Data:
        """Adds random values per sample, drawn anew at every step: ``fn(n, generator) -> [n, ...]``.

        Unlike ``map`` it leaves x alone, so that what is computed from x once stays so.
        """
        self._free(columns)
        return replace(self, draws={**self.draws, **columns})

    def _free(self, names: Mapping[str, Any]) -> None:
        taken = {"x", "y", "rows", "mask", "extra", "mean", "replace", *self.columns, *self.constants, *self.draws}
        if clash := taken & set(names):
            raise ValueError(f"the data has {sorted(clash)[0]!r} already; choose another name")
