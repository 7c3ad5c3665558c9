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

from manyheads.models.winograd import Conv2d, Matrix, axis, both, pays

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
        windows = columns.flatten(1, 2).unfold(0, self._kernel, 1).movedim(-1, 1).flatten(1, 2)  # of all rows, a view
        found = x.new_empty(2 * down, 2 * self._outputs, samples)
        four = found.view(down, 4, self._outputs, samples)  # two rows, two columns
        pooled = x.new_empty(down, across, self._outputs, samples)
        for column in range(across):
            columns.copy_(x[:, 2 * column : 2 * column + self._kernel + 1])
            torch.bmm(self._matrix, windows[: 2 * down], out=found)
            torch.amax(four, 1, out=pooled[:, column])
        return pooled


class _Tiles:
    """One tile of all samples at a time."""

    def __init__(self, layer: Conv2d, h: int, w: int) -> None:
        padding = int(layer.padding[0])
        self._down, self._across = (axis(side, padding, "float32") for side in (h, w))
        self.pooled = _pooled(layer, h), _pooled(layer, w)
        points = both(self._down.kernel, self._across.kernel, layer.weight.permute(2, 3, 0, 1))
        self._kernels = points.view(-1, *layer.weight.shape[:2])

    def __call__(self, x: Tensor) -> Tensor:
        samples = x.shape[3]
        sides = [len(each.out_of) for each in (self._down, self._across)]
        whole = all(side % 2 == 0 for side in sides)  # then no pooling reaches over the border of a tile
        scale = 1 if whole else 2
        found = x.new_empty(*[scale * side for side in self.pooled], self._kernels.shape[1] * samples)
        down, across = (scale * side // 2 for side in sides)
        for top, (rows, into) in zip(range(0, len(found), down), self._down.windows, strict=False):
            strip = torch.mm(torch.from_numpy(into), x[rows].flatten(1)).view(len(into), x.shape[1], -1)
            for left, window in zip(range(0, found.shape[1], across), self._across.windows, strict=False):
                tile = self._tile(strip, *window, samples)
                place = found[top : top + down, left : left + across]
                place.copy_((_halved(tile) if whole else tile)[: len(place), : place.shape[1]])
        return (found if whole else _halved(found)).view(*self.pooled, -1, samples)

    def _tile(self, strip: Tensor, columns: slice, into: Matrix, samples: int) -> Tensor:
        """What a convolution makes of a strip's columns, ``[m, m, channels' * samples]``."""
        down, across = (torch.from_numpy(each.out_of) for each in (self._down, self._across))
        (m, n), (_, n_across) = down.shape, across.shape
        seen = torch.bmm(torch.from_numpy(into).expand(n, -1, -1), strip[:, columns])
        products = torch.bmm(self._kernels, seen.view(n * n_across, -1, samples))
        inner = torch.mm(down, products.view(n, -1)).view(m, n_across, -1)
        return torch.bmm(across.expand(m, -1, -1), inner)


def _halved(x: Tensor) -> Tensor:
    """The largest of each 2x2 neighbours on the first two axes."""
    tall = torch.maximum(x[0::2], x[1::2])
    return torch.maximum(tall[:, 0::2], tall[:, 1::2])
