"""The promises that every kind of partition keeps: the auxiliary set, the least size, the test images."""

import math
from collections.abc import Sequence

import numpy as np

from manyheads.data.counts import whole_number
from manyheads.data.sampling import Ints, apportion, stratified, stream
from manyheads.errors import InputError


def set_apart(labels: Ints, size: int | None, seed: int) -> tuple[Ints, Ints]:
    """Sorted positions in the train split of the auxiliary set D_s, a stratified choice, and of the rest.

    A size of None takes 10 %, at most 5,000. Raises InputError when it is negative or larger than the split.
    """
    if size is None:
        size = min(5000, len(labels) // 10)
    if whole_number("data.auxiliary", size, least=0) > len(labels):
        raise InputError(f"data.auxiliary = {size}: there are only {len(labels)} train images; choose fewer")
    taken = stratified(labels, size, stream(seed, "auxiliary"))
    return taken, np.delete(np.arange(len(labels)), taken)


def least_size(min_train: int | None, images: int) -> int:
    """``min_train``, or its default for a train split of so many images: 64, or 10 below 10,000."""
    if min_train is None:
        return 10 if images < 10_000 else 64
    return whole_number("partition.min_train", min_train)


def check_room(clients: int, least: int, images: int) -> None:
    """Raise InputError when so many clients cannot all have so many images, whatever the draw."""
    if clients * least > images:
        most = images // least
        raise InputError(
            f"partition.clients = {clients}: {images} train images are too few for min_train = {least} each;"
            f" choose {f'at most {most} clients' if most else 'a smaller min_train or auxiliary set'}"
        )


def check_share(validation: float) -> None:
    """Raise InputError when the share of validation images is not in [0, 1)."""
    if not 0 <= validation < 1:  # also refuses nan
        raise InputError(f"data.validation = {validation!r}: must be in [0, 1), such as 0.1")


def check_apart(split: str, groups: Sequence[Ints], size: int) -> None:
    """Raise InputError when positions lie outside ``0..size-1`` or one of them occurs twice."""
    everything = np.concatenate(groups)
    outside = everything[(everything < 0) | (everything >= size)]
    if len(outside):
        raise InputError(f"partition: position {outside[0]} is not in the {split} split, which has {size} images")
    twice = np.flatnonzero(np.bincount(everything) > 1)
    if len(twice):
        raise InputError(f"partition: image {twice[0]} of the {split} split occurs more than once")


def share_of_test(train: Ints, available: int) -> Ints:
    """How many of the ``available`` test images of a class each client gets, by its ``train`` images of that class.

    All are given away, unless nobody holds the class: in proportion by largest remainder, but at least 1 to every
    holder when there are enough. Those extra ones are taken, one at a time, from the client that is most above its
    exact proportion, so that nobody moves further from it than needed.
    """
    counts = apportion(train, available)
    if 0 < np.count_nonzero(train) <= available:
        surplus = counts - train * (available / int(train.sum()))
        for client in np.flatnonzero((train > 0) & (counts == 0)):
            counts[client] = 1
            giver = int(np.argmax(np.where(counts > 1, surplus, -math.inf)))
            counts[giver] -= 1
            surplus[giver] -= 1
    return counts
