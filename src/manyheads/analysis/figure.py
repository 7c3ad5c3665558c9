"""What the pictures of all analyses share."""

from pathlib import Path
from textwrap import fill

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray

from manyheads.contract import Data
from manyheads.errors import InputError
from manyheads.report.curves import save_figure
from manyheads.storage.atomic import make_folder, one_line


def checked(path: Path | str, option: str = "--out") -> Path:
    """The path of a picture that is to be written, its folder made; called before long work, not after it.

    Args:
        path: the PNG to write.
        option: where a person gave it.

    Raises:
        InputError: it is no PNG's name, or its folder cannot be made.
    """
    path = Path(path)
    if path.suffix.lower() != ".png" or path.is_dir():
        raise InputError(
            f"{option} {path}: a picture is written as PNG; give a file such as {path.with_suffix('.png')}"
        )
    with one_line(f"{option} {path}: cannot make its folder", InputError):
        make_folder(path.absolute().parent)
    return path


def save(figure: Figure, path: Path, option: str = "--out") -> None:
    """Writes a figure as PNG.

    Args:
        figure: what to write.
        path: as ``checked`` gave it.
        option: where a person gave it.

    Raises:
        InputError: it cannot be written.
    """
    with one_line(f"{option} {path}: cannot be written", InputError):
        save_figure(figure, path)


def wrapped(text: str, figure: Figure, size: float) -> str:
    """The text in lines that fit into a figure, for letters of this size in points."""
    return fill(text, int(figure.get_figwidth() * 72 / size * 1.7))  # a letter is 0.55 of its size wide, about


def pixels(data: Data) -> NDArray[np.float32]:
    """The images as they can be shown: ``[n, h, w, 3]``, or ``[n, h, w]`` where they have not 3 channels, in [0, 1]."""
    mean, std = (torch.tensor(values)[:, None, None] for values in (data.mean, data.std))
    images = (data.x(torch.arange(len(data))) * std + mean).clamp(0, 1)
    shown: NDArray[np.float32] = (images.permute(0, 2, 3, 1) if images.shape[1] == 3 else images.mean(dim=1)).numpy()
    return shown
