"""The promises that every kind of partition keeps: the auxiliary set, the least size, the test images."""

import math
from collections.abc import Sequence

import numpy as np

from manyheads.data.counts import whole_number
from manyheads.data.dataset import check_labels
from manyheads.data.sampling import Ints, apportion, stratified, stream
from manyheads.errors import InputError

SMALL = 10_000  # data sets with fewer train images get the smaller min_train


def take_auxiliary(labels: Ints, size: int | None, *, classes: int, seed: int) -> Ints:
    """Sorted positions of the auxiliary set D_s in the train split, its classes in proportion to those of the split.

    Args:
        labels: int64 labels of the train split.
        size: how many; None: 10 %, at most 5,000.
        classes: number of classes.
        seed: decides which ones.

    Raises:
        InputError: the size is negative or larger than the split, or a label lies outside the classes.
    """
    check_labels(labels, classes, "train")
    if size is None:
        size = min(5000, len(labels) // 10)
    if whole_number("data.auxiliary", size, least=0) > len(labels):
        raise InputError(f"data.auxiliary = {size}: there are only {len(labels)} train images; choose fewer")
    return stratified(labels, size, stream(seed, "auxiliary"))


def least_size(min_train: int | None, images: int) -> int:
    """``min_train``, or its default for a train split of so many images: 64, or 10 below 10,000."""
    if min_train is None:
        return 10 if images < SMALL else 64
    return whole_number("partition.min_train", min_train)


def check_room(clients: int, least: int, images: int) -> None:
    """Raise InputError when so many clients cannot all have so many images, whatever the draw."""
    if clients * least > images:
        advice = [f"at most {images // least} clients"] if images >= least else []
        advice += [f"min_train of at most {images // clients}"] if images >= clients else []
        raise InputError(
            f"partition.clients = {clients}: {images} train images are too few for min_train = {least} each;"
            f" choose {' or '.join(advice or ['more images'])}"
        )


def check_share(validation: float) -> float:
    """The share of validation images itself. Raises InputError when it is not in [0, 1)."""
    if not 0 <= validation < 1:  # also refuses nan
        raise InputError(f"data.validation = {validation!r}: must be in [0, 1), such as 0.1")
    return validation


def check_apart(split: str, groups: Sequence[Ints], size: int) -> None:
    """Raise InputError when positions lie outside ``0..size-1`` or one of them occurs twice."""
    everything = np.concatenate(groups)
    outside = everything[(everything < 0) | (everything >= size)]
    if len(outside):
        raise InputError(f"partition: position {outside[0]} is not in the {split} split, which has {size} images")
    twice = np.flatnonzero(np.bincount(everything, minlength=1) > 1)
    if len(twice):
        raise InputError(f"partition: image {twice[0]} of the {split} split occurs more than once")


def share_of_test(train: Ints, available: int) -> Ints:
    """How many of the test images of one class each client gets.

    Args:
        train: train images of this class, one number a client.
        available: test images of this class.

    Returns:
        Counts that sum to ``available`` (0 when nobody holds the class): in proportion to ``train`` by largest
        remainder, but at least 1 for every holder when there are enough. Those extra ones are taken, one at a time,
        from the client that is most above its exact proportion, so that nobody moves further from it than needed.
    """
    counts = apportion(train, available)
    holders = int(np.count_nonzero(train))
    if 0 < holders <= available:
        surplus = counts - train * (available / int(train.sum()))
        for client in np.flatnonzero((train > 0) & (counts == 0)):
            counts[client] = 1
            giver = int(np.argmax(np.where(counts > 1, surplus, -math.inf)))
            counts[giver] -= 1
            surplus[giver] -= 1
    return counts
