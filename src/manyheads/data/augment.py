"""RandAugment: every image of a batch gets a few random operations of one strength.

Cubuk, Zoph, Shlens, Le: RandAugment: Practical automated data augmentation with a reduced search space. NeurIPS 2020.

Every image draws its operations, with replacement, and the direction of those that have two. The 14 operations are the
paper's. On images of one channel, color does nothing and is left out. The pixel operations are kornia's; rotation,
shear and translation of all images are one bilinear warp, whose uncovered corners are black.

Our decision: strengths grow linearly up to magnitude 30, which rotates by 30 degrees, shears by 0.3, translates by 0.45
of the side, keeps 4 of 8 bits, solarizes all pixels, and has factors of 0.1 or 1.9 for contrast, brightness, sharpness
and color. These are close to torchvision's. The authors' own code reaches similar strengths at magnitude 10, so that
its magnitude 9 is about three times as strong as the one here.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor
from torch.nn import functional

from manyheads.contract.data import Batch, Data
from manyheads.errors import InputError

GREATEST = 30  # the scale of magnitudes
SMALLEST = 3  # pixels a side: sharpness looks at neighbours

WARPS: tuple[str, ...] = ("rotate", "shear_x", "shear_y", "translate_x", "translate_y")
PIXELS = ("auto_contrast", "equalize", "posterize", "solarize", "contrast", "brightness", "sharpness")
COLORS = ("color",)


@dataclass(frozen=True)
class RandAugment:
    """A map for ``Data.map``.

    Attributes:
        mean: per channel, of pixels in [0, 1].
        std: per channel, of pixels in [0, 1].
        ops: operations an image.
        magnitude: their strength, in [0, 30].
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    ops: int = 2
    magnitude: int = 9

    @classmethod
    def of(cls, data: Data, ops: int = 2, magnitude: int = 9) -> RandAugment:
        """For images normalised as those of ``data`` are.

        Raises:
            InputError: as ``check``.
        """
        cls.check(tuple(data.x(torch.arange(1)).shape[1:]))
        return cls(data.mean, data.std, ops, magnitude)

    @staticmethod
    def check(image: tuple[int, ...]) -> None:
        """Refuses images ``(channels, height, width)`` that cannot be augmented.

        Raises:
            InputError: kornia is not installed, or such images are neither gray nor colour, or too small.
        """
        _kornia()
        channels, height, width = image
        if channels not in (1, 3):
            raise InputError(
                f"algorithm.augment = true: RandAugment is for images of 1 or 3 channels, not {channels}; "
                "set it to false"
            )
        if min(height, width) < SMALLEST:
            raise InputError(
                f"algorithm.augment = true: RandAugment is for images of at least {SMALLEST}x{SMALLEST} pixels, "
                f"not {height}x{width}; set it to false"
            )

    def __call__(self, batch: Batch, rng: Generator) -> Batch:
        """The batch with images augmented; draws from ``rng`` only."""
        mean, std = (torch.tensor(values)[:, None, None] for values in (self.mean, self.std))
        names = ("identity", *WARPS, *PIXELS, *(COLORS if len(self.mean) == 3 else ()))
        choice = torch.randint(len(names), (self.ops, len(batch)), generator=rng)
        sign = torch.randint(2, (self.ops, len(batch)), generator=rng) * 2.0 - 1
        x = (batch.x * std + mean).clamp(0, 1)
        for chosen, signs in zip(choice, sign, strict=True):
            x = self._augmented(x, names, chosen, signs)
        return batch.replace(x=((x - mean) / std).contiguous(memory_format=torch.channels_last))

    def _augmented(self, x: Tensor, names: tuple[str, ...], chosen: Tensor, sign: Tensor) -> Tensor:
        """Each image after the operation that fell on it."""
        x, strength = x.clone(), self.magnitude / GREATEST
        sizes = torch.bincount(chosen, minlength=len(names)).tolist()
        rows = dict(zip(names, torch.split(chosen.argsort(stable=True), sizes), strict=True))
        warps = [name for name in names if name in WARPS and len(rows[name])]
        if warps:
            moved = torch.cat([rows[name] for name in warps])
            x[moved] = _warped(x[moved], {name: sign[rows[name]] * strength for name in warps})
        for name in (name for name in names if name in _PIXEL_OPS and len(rows[name])):
            mine = rows[name]
            x[mine] = _PIXEL_OPS[name](_kornia(), x[mine], strength, sign[mine]).clamp(0, 1)
        return x


def _auto_contrast(k: Any, x: Tensor, strength: float, sign: Tensor) -> Tensor:
    flat = x.amax(dim=(2, 3), keepdim=True) == x.amin(dim=(2, 3), keepdim=True)
    return torch.where(flat, x, k.normalize_min_max(x))  # kornia makes a channel of one value black


_PixelOp = Callable[[Any, Tensor, float, Tensor], Tensor]

_PIXEL_OPS: dict[str, _PixelOp] = {
    "auto_contrast": _auto_contrast,
    "equalize": lambda k, x, strength, sign: k.equalize(x),
    "posterize": lambda k, x, strength, sign: k.posterize(x, 8 - round(4 * strength)),
    "solarize": lambda k, x, strength, sign: k.solarize(x, 1 - strength),
    "contrast": lambda k, x, strength, sign: k.adjust_contrast_with_mean_subtraction(x, 1 + 0.9 * strength * sign),
    "brightness": lambda k, x, strength, sign: k.adjust_brightness_accumulative(x, 1 + 0.9 * strength * sign),
    "sharpness": lambda k, x, strength, sign: k.sharpness(x, 1 + 0.9 * strength * sign),
    "color": lambda k, x, strength, sign: k.adjust_saturation_with_gray_subtraction(x, 1 + 0.9 * strength * sign),
}


def _warped(x: Tensor, amounts: Mapping[str, Tensor]) -> Tensor:
    """Images, ordered by what happens to them, rotated, sheared or translated by amounts in [-1, 1]."""
    h, w = x.shape[2:]
    # an output pixel's place -> where it comes from; for torch an image reaches from -1 to 1
    shears = {"shear_x": (0, 1, 0.3 * h / w), "shear_y": (1, 0, 0.3 * w / h)}
    slopes = shears | {"translate_x": (0, 2, 0.9), "translate_y": (1, 2, 0.9)}
    grid = torch.eye(2, 3).repeat(len(x), 1, 1)
    start = 0
    for name, amount in amounts.items():
        mine = grid[start : (start := start + len(amount))]
        if name in slopes:
            row, column, slope = slopes[name]
            mine[:, row, column] = slope * amount
        else:
            angle = torch.deg2rad(30 * amount)
            mine[:, 0, 0] = mine[:, 1, 1] = angle.cos()
            mine[:, 0, 1], mine[:, 1, 0] = -angle.sin() * h / w, angle.sin() * w / h
    places = functional.affine_grid(grid, list(x.shape), align_corners=False)
    return functional.grid_sample(x, places, align_corners=False)


def _kornia() -> Any:
    try:
        return importlib.import_module("kornia.enhance")
    except ImportError:
        raise InputError(
            "algorithm.augment = true needs kornia: pip install 'manyheads[augment]', or set it to false"
        ) from None
