"""Convolutions by fewer multiplications on a processor: Winograd's minimal filtering.

On one axis, ``n = m + r - 1`` inputs and a kernel of ``r`` give ``m`` results. Read as polynomials, both are evaluated
at ``n`` points, multiplied there and interpolated: ``n`` multiplications instead of ``m r``, and that on both axes
(Lavin & Gray 2016). The second convolution of the papers' CNN, more than half of a training step, takes half the time.
"""

from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor, nn

_KERNEL = 5  # 3x3 kernels between 32 or 64 channels gain 1.0 to 1.3 times, when all goes well: not worth it

# By n, the finite points; one more lies at infinity. Of those with small fractions, symmetric about zero, these gave
# the least rounding error in fp32.
_POINTS = {
    8: (0.0, -1 / 2, 1 / 2, -1.0, 1.0, -2.0, 2.0),
    9: (-1 / 4, 1 / 4, -2 / 3, 2 / 3, -1.0, 1.0, -2.0, 2.0),
}
_TRANSFORM = 45  # what transforming a number costs, in multiplications of the products: measured
_GAIN = 1.1  # how many times quicker tiles must look


class Conv2d(nn.Conv2d):
    """A convolution of stride 1 by ``convolve`` where that is quicker, and torch's elsewhere.

    It is quicker on a processor, in fp32, for 5x5 kernels between enough channels: twice as fast in the papers' CNN.
    Results differ from torch's by rounding, less than 1e-5 of their size; weights and their names are the same.

    Args:
        inputs: Channels of the images.
        outputs: Channels of the results.
        kernel: Side of the kernel.
        padding: Zeros on each side of the images.
    """

    def __init__(self, inputs: int, outputs: int, kernel: int, padding: int = 0) -> None:
        super().__init__(inputs, outputs, kernel, padding=padding)
        self._side = padding

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[batch, inputs, h, w]`` to ``[batch, outputs, h', w']``."""
        exact = x.device.type == "cpu" and x.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")
        if exact and _pays(*self.weight.shape[:3], self._side, x.shape[2], x.shape[3]):
            return convolve(x, self.weight, self.bias, self._side)
        return super().forward(x)


class _Axis(NamedTuple):
    """How one axis is cut into tiles.

    Attributes:
        into: Evaluates the inputs of all tiles, ``[n * tiles, side]``.
        kernel: Evaluates the kernel, ``[n, r]``.
        out_of: Interpolates the results of a tile, ``[m, n]``.
        tiles: How many there are.
        results: How many results there are; the last tile may give more.
    """

    into: Tensor
    kernel: Tensor
    out_of: Tensor
    tiles: int
    results: int


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None, padding: int = 0) -> Tensor:
    """The convolution of stride 1 as ``torch.nn.functional.conv2d`` has it, in channels-last order.

    Args:
        x: ``[batch, inputs, h, w]``; quick where it is channels-last.
        weight: ``[outputs, inputs, r, r]``, r at most 7.
        bias: ``[outputs]``.
        padding: Zeros around the images.
    """
    batch, inputs, h, w = x.shape
    outputs, _, r, _ = weight.shape
    down, across = (_axis(side, r, padding, x.dtype) for side in (h, w))
    points = (len(down.kernel), len(across.kernel))
    tiles = _both(down.into, across.into, x.permute(2, 3, 0, 1))
    tiles = tiles.view(points[0], down.tiles, points[1], across.tiles, -1).transpose(1, 2)
    kernels = _both(down.kernel, across.kernel, weight.permute(2, 3, 1, 0)).view(-1, inputs, outputs)
    products = torch.bmm(tiles.reshape(len(kernels), -1, inputs), kernels)  # [points, tiles * batch, outputs]
    found = _both(down.out_of, across.out_of, products.view(*points, -1))
    found = found.view(*found.shape[:2], down.tiles, across.tiles, batch, outputs).permute(4, 2, 0, 3, 1, 5)
    found = found.flatten(3, 4).flatten(1, 2)[:, : down.results, : across.results]
    return (found if bias is None else found + bias).contiguous().permute(0, 3, 1, 2)


def _both(first: Tensor, second: Tensor, x: Tensor) -> Tensor:
    """``first`` times axis 0 and ``second`` times axis 1 of ``x``: ``[len(first), len(second), rest]``."""
    inner = torch.mm(first, x.reshape(len(x), -1)).view(len(first), x.shape[1], -1)
    return torch.bmm(second.expand(len(first), -1, -1), inner)


def _cut(results: int, r: int) -> tuple[int, int]:
    """For which n the tiles have the fewest numbers in all, and how many tiles."""
    return min(((n, -(-results // (n - r + 1))) for n in _POINTS), key=lambda cut: cut[0] * cut[1])


@cache
def _pays(outputs: int, inputs: int, r: int, padding: int, h: int, w: int) -> bool:
    """Whether tiles look quicker, by what both multiply and by what the transforms cost."""
    sides = [side + 2 * padding - r + 1 for side in (h, w)]
    if r != _KERNEL or min(sides) < 1:
        return False
    (n, down), (m, across) = (_cut(side, r) for side in sides)
    tiled = n * down * m * across * (inputs * outputs + _TRANSFORM * (inputs + outputs))
    return sides[0] * sides[1] * r * r * inputs * outputs > _GAIN * tiled


@cache
def _axis(side: int, r: int, padding: int, dtype: torch.dtype) -> _Axis:
    """The matrices of an axis: those of a product of polynomials with m and r coefficients, transposed."""
    results = side + 2 * padding - r + 1
    n, tiles = _cut(results, r)
    m = n - r + 1
    factors = torch.stack([_at_points(n, m).norm(dim=1), _at_points(n, r).norm(dim=1), _back(n).norm(dim=1)])
    scale = factors.log().mean(0).exp() / factors  # at each point the three get the same size: less rounding
    into = torch.zeros(n, tiles, 2 * padding + side + m, dtype=torch.float64)
    for tile in range(tiles):
        into[:, tile, tile * m : tile * m + n] = _back(n) * scale[2, :, None]
    into = into[:, :, padding : padding + side].reshape(n * tiles, side)  # zeros around the images need no columns
    kernel, out_of = _at_points(n, r) * scale[1, :, None], (_at_points(n, m) * scale[0, :, None]).T
    return _Axis(into.to(dtype), kernel.to(dtype), out_of.to(dtype).contiguous(), tiles, results)


def _at_points(n: int, coefficients: int) -> Tensor:
    """Evaluates polynomials at n points, ``[n, coefficients]``; at infinity only the last coefficient counts."""
    finite = torch.tensor(_POINTS[n], dtype=torch.float64)[:, None] ** torch.arange(coefficients)
    return torch.cat([finite, torch.eye(coefficients, dtype=torch.float64)[-1:]])


def _back(n: int) -> Tensor:
    """The transpose of what finds a polynomial of n coefficients from its values at n points, ``[n, n]``."""
    inverse: Tensor = torch.linalg.inv(_at_points(n, n))
    return inverse.T
