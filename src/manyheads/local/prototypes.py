"""Class prototypes at the server: mean features of all images of a class, over clients."""

from collections.abc import Mapping

import torch
from torch import Tensor

from manyheads.contract import Upload


def pooled(uploads: Mapping[int, Upload], before: Tensor, known: Tensor) -> tuple[Tensor, Tensor]:
    """The mean over clients of their class means, each weighted by its number of images.

    Args:
        uploads: each with ``means`` ``[classes, features]`` and ``counts`` ``[classes]``.
        before: prototypes that classes keep which nobody holds this time, ``[classes, features]``.
        known: 1 for classes that have had a prototype, else 0, ``[classes]``.

    Returns:
        Prototypes and which are known, as ``before`` and ``known``.
    """
    counts = torch.stack([upload.counts for upload in uploads.values()]).double()
    means = torch.stack([upload.means for upload in uploads.values()]).double()
    n = counts.sum(dim=0)
    mean = (counts[:, :, None] * means).sum(dim=0) / n.clamp(min=1)[:, None]
    held = n > 0
    return torch.where(held[:, None], mean.float(), before), torch.maximum(known, held.float())
