"""RandAugment: every image of a batch gets a few random operations of one strength.

Cubuk, Zoph, Shlens, Le: RandAugment: Practical automated data augmentation with a reduced search space. NeurIPS 2020.

Every image draws its operations, with replacement, and the direction of those that have two. The table is the paper's,
with the strengths of its reference implementation at magnitude 30. On images of one channel, color does nothing and is
left out. The pixel operations are kornia's; rotation, shear and translation of all images are one bilinear warp, whose
uncovered corners are black.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor
from torch.nn import functional

from manyheads.contract.data import Batch, Data
from manyheads.errors import InputError

GREATEST = 30  # the scale of magnitudes

WARPS = ("rotate", "shear_x", "shear_y", "translate_x", "translate_y")
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
            InputError: kornia is not installed, or the images are neither gray nor colour.
        """
        _kornia()
        if len(data.mean) not in (1, 3):
            raise InputError(
                f"algorithm.augment = true: RandAugment is for images of 1 or 3 channels, not {len(data.mean)}; "
                "set it to false"
            )
        return cls(data.mean, data.std, ops, magnitude)

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
        x, strength = x.clone(), self.magnitude / GREATEST
        moved = (chosen >= 1) & (chosen <= len(WARPS))
        if moved.any():
            x[moved] = _warped(x[moved], chosen[moved] - 1, sign[moved] * strength)
        for number in range(1 + len(WARPS), len(names)):
            rows = (chosen == number).nonzero().flatten()
            if len(rows):
                x[rows] = _PIXEL_OPS[names[number]](_kornia(), x[rows], strength, sign[rows]).clamp(0, 1)
        return x


_PixelOp = Callable[[Any, Tensor, float, Tensor], Tensor]

_PIXEL_OPS: dict[str, _PixelOp] = {
    "auto_contrast": lambda k, x, strength, sign: k.normalize_min_max(x),
    "equalize": lambda k, x, strength, sign: k.equalize(x),
    "posterize": lambda k, x, strength, sign: k.posterize(x, 8 - round(4 * strength)),
    "solarize": lambda k, x, strength, sign: k.solarize(x, 1 - strength),
    "contrast": lambda k, x, strength, sign: k.adjust_contrast_with_mean_subtraction(x, 1 + 0.9 * strength * sign),
    "brightness": lambda k, x, strength, sign: k.adjust_brightness_accumulative(x, 1 + 0.9 * strength * sign),
    "sharpness": lambda k, x, strength, sign: k.sharpness(x, 1 + 0.9 * strength * sign),
    "color": lambda k, x, strength, sign: k.adjust_saturation_with_gray_subtraction(x, 1 + 0.9 * strength * sign),
}


def _warped(x: Tensor, which: Tensor, strength: Tensor) -> Tensor:
    """Each image rotated, sheared or translated: ``which`` counts ``WARPS``, ``strength`` is in [-1, 1]."""
    h, w = x.shape[2:]
    angle = torch.deg2rad(30 * strength) * (which == 0)
    cos, sin = angle.cos(), angle.sin()
    shear_x, shear_y = (0.3 * strength * (which == number) for number in (1, 2))
    shift_x, shift_y = (2 * 0.45 * strength * (which == number) for number in (3, 4))  # the image is 2 wide in torch
    rows = (cos, (shear_x - sin) * h / w, shift_x, (shear_y + sin) * w / h, cos, shift_y)
    grid = functional.affine_grid(torch.stack(rows, dim=1).view(-1, 2, 3), list(x.shape), align_corners=False)
    return functional.grid_sample(x, grid, align_corners=False)


def _kornia() -> Any:
    try:
        return importlib.import_module("kornia.enhance")
    except ImportError:
        raise InputError(
            "algorithm.augment = true needs kornia: pip install 'manyheads[augment]', or set it to false"
        ) from None
