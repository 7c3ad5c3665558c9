"""Convolution, pooling and ReLU where no gradient is wanted, with the samples innermost in memory.

Images lie as ``[h, w, channels, samples]``. So the matrices of every product lie as a matrix product takes them,
nothing is put into another order between layers, and pooling compares long rows. A convolution over few channels is a
product with a band matrix: what a 5x5 kernel makes of two columns of results takes six columns of an image. One over
many goes by tiles (``winograd``).
"""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from manyheads.models.winograd import Conv2d, axis, both, pays

PIECE = 64  # samples at a time: what is said of them stays in the cache, and all products have one size


def pays_off(convolutions: Sequence[Conv2d], h: int, w: int) -> bool:
    """Whether this is quicker for images of that size: where all convolutions but the first one go by tiles.

    Args:
        convolutions: as for ``through``.
        h: height of the images.
        w: width of the images.
    """
    quick = []
    for layer in convolutions:
        quick.append(_by_tiles(layer, h, w))
        h, w = (_pooled(layer, side) for side in (h, w))
    return len(quick) > 1 and all(quick[1:]) and min(h, w) > 0


def through(convolutions: Sequence[Conv2d], x: Tensor) -> Tensor:
    """Convolutions, 2x2 max pooling and a ReLU after each, as their modules in turn make them, but for rounding.

    Args:
        convolutions: with square kernels, of stride 1.
        x: ``[batch, channels, h, w]`` on a processor, fp32, not empty; each pooling finds at least 2x2 results.

    Returns:
        ``[batch, channels', h', w']``, with the samples innermost; flattened it is what a linear layer takes as it is.
    """
    h, w = x.shape[2:]
    steps: list[_Step] = []
    for layer in convolutions:
        steps.append((_Tiles if _by_tiles(layer, h, w) else _Bands)(layer, h, w))
        h, w = steps[-1].pooled
    found = x.new_empty(convolutions[-1].out_channels, h, w, len(x))
    for piece, place in zip(torch.split(x, PIECE), torch.split(found, PIECE, dim=3), strict=True):
        inner = piece.permute(2, 3, 1, 0).contiguous()
        for layer, step in zip(convolutions, steps, strict=True):
            inner = step(inner)
            inner = (inner if layer.bias is None else inner.add_(layer.bias[:, None])).relu_()
        place.copy_(inner.permute(2, 0, 1, 3))
    return found.permute(3, 0, 1, 2)


def _by_tiles(layer: Conv2d, h: int, w: int) -> bool:
    return pays(*layer.weight.shape[:3], int(layer.padding[0]), h, w)


def _pooled(layer: Conv2d, side: int) -> int:
    return max(0, side + 2 * int(layer.padding[0]) - layer.kernel_size[0] + 1) // 2


class _Step(Protocol):
    """A convolution without bias, and its pooling: ``[h, w, channels, samples]`` to ``[h', w', channels', samples]``.

    Attributes:
        pooled: h' and w'.
    """

    pooled: tuple[int, int]

    def __call__(self, x: Tensor) -> Tensor: ...


class _Bands:
    """Two columns of results at a time, as the product of a band matrix and windows of as many columns as they need."""

    def __init__(self, layer: Conv2d, h: int, w: int) -> None:
        weight, self._padding = layer.weight, int(layer.padding[0])
        self._outputs, channels, self._kernel, _ = weight.shape
        self.pooled = _pooled(layer, h), _pooled(layer, w)
        band = weight.new_zeros(2, self._outputs, self._kernel, self._kernel + 1, channels)
        for column in range(2):
            band[column, :, :, column : column + self._kernel] = weight.permute(0, 2, 3, 1)
        self._matrix = band.view(1, 2 * self._outputs, -1).expand(2 * self.pooled[0], -1, -1)

    def __call__(self, x: Tensor) -> Tensor:
        if self._padding:
            x = functional.pad(x, (0, 0, 0, 0, *[self._padding] * 4))
        (down, across), samples = self.pooled, x.shape[3]
        columns = x.new_empty(len(x), self._kernel + 1, *x.shape[2:])
        rows = columns.flatten(1, 2).unfold(0, self._kernel, 1)[: 2 * down]  # a view, as are the windows made of them
        windows = rows.movedim(-1, 1).flatten(1, 2)
        found = x.new_empty(2 * down, 2 * self._outputs, samples)
        four = found.view(down, 4, self._outputs, samples)  # two rows, two columns
        pooled = x.new_empty(down, across, self._outputs, samples)
        seen = x.unfold(1, self._kernel + 1, 2).permute(1, 0, 4, 2, 3)  # by column of pooled results
        for some, place in zip(seen[:across], pooled.unbind(1), strict=True):
            columns.copy_(some)
            torch.bmm(self._matrix, windows, out=found)
            torch.amax(four, 1, out=place)
        return pooled


class _Tiles:
    """One tile of all samples at a time."""

    def __init__(self, layer: Conv2d, h: int, w: int) -> None:
        down, across = (axis(side, int(layer.padding[0]), "float32") for side in (h, w))
        points = both(down.kernel, across.kernel, layer.weight.permute(2, 3, 0, 1))
        self._kernels = points.view(-1, *layer.weight.shape[:2])
        self._down, self._across = torch.from_numpy(down.out_of), torch.from_numpy(across.out_of)
        self._rows = [(inputs, torch.from_numpy(into)) for inputs, into in down.windows]
        self._columns = [(inputs, torch.from_numpy(into)) for inputs, into in across.windows]
        self.pooled = _pooled(layer, h), _pooled(layer, w)

    def __call__(self, x: Tensor) -> Tensor:
        (m, n), m_across, samples = self._down.shape, len(self._across), x.shape[3]
        halve = 2 if m % 2 == m_across % 2 == 0 else 1  # where no pooling reaches over the border of a tile
        found = x.new_empty(*[2 * side // halve for side in self.pooled], self._kernels.shape[1] * samples)
        strips = torch.split(found, m // halve)
        for strip, (rows, into) in zip(strips, self._rows, strict=False):  # the last tile may have nothing to give
            inner = torch.mm(into, x[rows].flatten(1)).view(n, x.shape[1], -1)
            for place, (columns, into_across) in zip(
                torch.split(strip, m_across // halve, 1), self._columns, strict=False
            ):
                tile = self._tile(inner[:, columns], into_across, samples)
                tile = _halved(tile) if halve == 2 else tile
                place.copy_(tile[: len(place), : place.shape[1]])
        return (found if halve == 2 else _halved(found)).view(*self.pooled, -1, samples)

    def _tile(self, x: Tensor, into: Tensor, samples: int) -> Tensor:
        """``[m, m, channels' * samples]`` from ``[n, n, channels * samples]``, the rows of which are transformed."""
        (m, n), n_across = self._down.shape, self._across.shape[1]
        seen = torch.bmm(into.expand(n, -1, -1), x).view(len(self._kernels), -1, samples)
        products = torch.mm(self._down, torch.bmm(self._kernels, seen).view(n, -1))
        return torch.bmm(self._across.expand(m, -1, -1), products.view(m, n_across, -1))


def _halved(x: Tensor) -> Tensor:
    """The largest of each 2x2 neighbours on the first two axes."""
    tall = torch.maximum(x[0::2], x[1::2])
    return torch.maximum(tall[:, 0::2], tall[:, 1::2])
