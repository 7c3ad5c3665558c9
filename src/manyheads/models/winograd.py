"""5x5 convolutions by fewer multiplications on a processor: Winograd's minimal filtering.

On one axis, ``n = m + 4`` inputs give ``m`` results. That is the transpose of a product of two polynomials, with ``m``
and with 5 coefficients, which can be had from their values at ``n`` points: ``n`` multiplications instead of ``5 m``,
and that on both axes (Lavin & Gray 2016). The second convolution of the papers' CNN, more than half of a training step,
takes half the time.
"""

from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

Matrix = NDArray[np.floating[Any]]

_KERNEL = 5  # 3x3 kernels between 32 or 64 channels gain 1.0 to 1.3 times, when all goes well: not worth it

# By n, the finite points; one more lies at infinity. Of those with small fractions, symmetric about zero, these gave
# the least rounding error in fp32.
_POINTS = {
    8: (0.0, -1 / 2, 1 / 2, -1.0, 1.0, -2.0, 2.0),
    9: (-1 / 4, 1 / 4, -2 / 3, 2 / 3, -1.0, 1.0, -2.0, 2.0),
}
_TRANSFORM = 45  # what transforming a number costs, in multiplications of the products: measured
_GAIN = 1.1  # how many times quicker tiles must look
_PIECE = 16  # so many images' tiles stay in the cache; where a gradient is wanted it would not pay


class Conv2d(nn.Conv2d):
    """A convolution of stride 1 by ``convolve`` where that is quicker, and torch's elsewhere.

    It is quicker on a processor, in fp32, for 5x5 kernels between enough channels: twice as fast in the papers' CNN.
    Results differ from torch's by rounding, by about 1e-5 of their size; weights and their names are the same.

    Args:
        inputs: Channels of the images.
        outputs: Channels of the results.
        kernel: Side of the kernel.
        padding: Zeros on each side of the images.
        bias: Whether there is one.
    """

    def __init__(self, inputs: int, outputs: int, kernel: int, padding: int = 0, bias: bool = True) -> None:
        super().__init__(inputs, outputs, kernel, padding=padding, bias=bias)
        self._zeros = padding

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[batch, inputs, h, w]`` to ``[batch, outputs, h', w']``, channels-last where ``x`` is."""
        if x.is_mkldnn:  # oneDNN's own layout, beside which functional.conv2d refuses weights in bf16
            bias = None if self.bias is None else self.bias.to(x.dtype)
            dense = torch.contiguous_format  # as oneDNN wants it
            weight = self.weight.to(x.dtype, memory_format=dense)
            return torch.mkldnn_convolution(x, weight, bias, [self._zeros] * 2, [1, 1], [1, 1], 1)
        whole = x.dim() == 4 and x.shape[1] == self.in_channels  # what is not, torch knows how to refuse
        if whole and is_fp32(x) and pays(*self.weight.shape[:3], self._zeros, x.shape[2], x.shape[3]):
            return convolve(x, self.weight, self.bias, self._zeros)
        return super().forward(x)


def is_fp32(x: Tensor) -> bool:
    """Whether products are going to be in fp32, on a processor: in less, tiles would lose too many bits."""
    exact = not torch.is_autocast_enabled("cpu") and torch.get_float32_matmul_precision() == "highest"
    return exact and x.dtype == torch.float32 and x.device.type == "cpu"


class Axis(NamedTuple):
    """How one axis is cut into tiles.

    Attributes:
        into: Makes of inputs what is multiplied, for all tiles: interpolation, transposed; ``[n * tiles, side]``.
        kernel: Makes of the kernel what is multiplied: its values at the points; ``[n, 5]``.
        out_of: Makes results of the products of a tile: values at the points, transposed; ``[m, n]``.
        tiles: How many there are.
        results: How many results there are; the last tile may give more.
        windows: By tile, the inputs that it sees, and the columns of ``into`` for them: ``[n, at most n]``.
    """

    into: Matrix
    kernel: Matrix
    out_of: Matrix
    tiles: int
    results: int
    windows: list[tuple[slice, Matrix]]


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None, padding: int = 0) -> Tensor:
    """The convolution of stride 1 as ``torch.nn.functional.conv2d`` has it, in channels-last order.

    A number that is not finite spreads over all results of its sample.

    Args:
        x: ``[batch, inputs, h, w]``, with padding at least 5x5; quick where it is channels-last.
        weight: ``[outputs, inputs, 5, 5]``.
        bias: ``[outputs]``.
        padding: Zeros around the images.
    """
    down, across = (axis(side, padding, str(x.dtype).removeprefix("torch.")) for side in x.shape[2:])
    kernels = both(down.kernel, across.kernel, weight.permute(2, 3, 1, 0)).view(-1, x.shape[1], len(weight))
    trained = torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad)
    pieces = [x] if trained else torch.split(x, _PIECE)
    found = [_convolved(piece, kernels, bias, down, across) for piece in pieces]
    return (torch.cat(found) if len(found) > 1 else found[0]).permute(0, 3, 1, 2)


def _convolved(x: Tensor, kernels: Tensor, bias: Tensor | None, down: Axis, across: Axis) -> Tensor:
    """``[batch, h', w', outputs]``, contiguous, with transformed kernels ``[products, inputs, outputs]``."""
    points = (len(down.kernel), len(across.kernel))
    batch, inputs, outputs = len(x), *kernels.shape[1:]
    tiles = both(down.into, across.into, x.permute(2, 3, 0, 1))
    tiles = tiles.view(points[0], down.tiles, points[1], across.tiles, -1).transpose(1, 2)
    found = torch.bmm(tiles.reshape(len(kernels), down.tiles * across.tiles * batch, inputs), kernels)
    found = both(down.out_of, across.out_of, found.view(*points, -1))
    found = found.view(*found.shape[:2], down.tiles, across.tiles, batch, outputs).permute(4, 2, 0, 3, 1, 5)
    found = found.flatten(3, 4).flatten(1, 2)[:, : down.results, : across.results]
    return (found if bias is None else found + bias).contiguous()


def both(first: Matrix, second: Matrix, x: Tensor) -> Tensor:
    """``first`` times axis 0 and ``second`` times axis 1 of ``x``: ``[len(first), len(second), rest]``."""
    inner = torch.mm(torch.from_numpy(first), x.reshape(len(x), -1)).view(len(first), x.shape[1], -1)
    return torch.bmm(torch.from_numpy(second).expand(len(first), -1, -1), inner)


def _cut(results: int) -> tuple[int, int]:
    """For which n the tiles have the fewest numbers in all, and how many tiles."""
    return min(((n, -(-results // (n - _KERNEL + 1))) for n in _POINTS), key=lambda cut: cut[0] * cut[1])


@cache
def pays(outputs: int, inputs: int, kernel: int, padding: int, h: int, w: int) -> bool:
    """Whether tiles look quicker, by what both multiply and by what the transforms cost."""
    sides = [side + 2 * padding - kernel + 1 for side in (h, w)]
    if kernel != _KERNEL or min(sides) < 1:
        return False
    (n_down, down), (n_across, across) = map(_cut, sides)
    tiled = n_down * down * n_across * across * (inputs * outputs + _TRANSFORM * (inputs + outputs))
    return sides[0] * sides[1] * kernel**2 * inputs * outputs > _GAIN * tiled


@cache  # of arrays: tensors would keep the mode and the device in which they were made
def axis(side: int, padding: int, dtype: str) -> Axis:
    """How an axis of so many inputs, with zeros around, is cut; matrices have numpy's ``dtype``."""
    results = side + 2 * padding - _KERNEL + 1
    n, tiles = _cut(results)
    m = n - _KERNEL + 1
    factors = [np.linalg.inv(_at_points(n, n)).T, _at_points(n, _KERNEL), _at_points(n, m)]
    sizes = np.stack([np.linalg.norm(factor, axis=1) for factor in factors])
    scale = np.exp(np.log(sizes).mean(0)) / sizes  # at each point the three get the same size: less rounding
    one, kernel, values = (factor * by[:, None] for factor, by in zip(factors, scale, strict=True))
    padded = np.zeros((n, tiles, 2 * padding + side + m))
    for tile in range(tiles):
        padded[:, tile, tile * m : tile * m + n] = one
    into = padded[:, :, padding : padding + side]  # zeros around the images need no columns
    starts = [tile * m - padding for tile in range(tiles)]
    seen = [slice(max(0, start), max(0, min(side, start + n))) for start in starts]
    windows = [(inputs, np.ascontiguousarray(into[:, tile, inputs], dtype)) for tile, inputs in enumerate(seen)]
    into, kernel, out_of = (
        np.ascontiguousarray(matrix, dtype) for matrix in (into.reshape(n * tiles, side), kernel, values.T)
    )
    return Axis(into, kernel, out_of, tiles, results, windows)


def _at_points(n: int, coefficients: int) -> Matrix:
    """Values of polynomials at n points, ``[n, coefficients]``; at infinity only the last coefficient counts."""
    finite = np.array(_POINTS[n])[:, None] ** np.arange(coefficients)
    return np.concatenate([finite, np.eye(coefficients)[-1:]])
