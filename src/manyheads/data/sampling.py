"""Random streams and exact rounding: the tools with which images are dealt out."""

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


def stream(*key: int | str | np.integer[Any]) -> np.random.Generator:
    """A generator of its own for a key such as ``(seed, "auxiliary")``; the same key gives the same numbers."""
    plain = tuple(part if isinstance(part, str) else int(part) for part in key)  # numpy writes its integers otherwise
    digest = hashlib.blake2b(repr(plain).encode(), digest_size=16).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest, "little")))


def apportion(weights: Ints, total: int) -> Ints:
    """Split ``total`` in proportion to ``weights`` by largest remainder, exactly; of equal remainders the first wins.

    All parts are 0 when all weights are.
    """
    whole = int(weights.sum())
    if whole == 0:
        return np.zeros_like(weights)
    parts, remainders = np.divmod(weights * total, whole)
    parts[np.argsort(-remainders, kind="stable")[: total - int(parts.sum())]] += 1
    return parts


def deal(cells: Ints, counts: Ints, rng: np.random.Generator) -> list[Ints]:
    """Deal items at random: one sorted array of positions an owner.

    ``cells`` has the cell, such as the class, of every item, shape ``[n]``, values in ``0..C-1``; ``counts`` how many
    items of each cell an owner gets, shape ``[owners, C]``. What is left over goes to nobody.
    """
    owners, width = counts.shape
    rest = np.bincount(cells, minlength=width) - counts.sum(axis=0)
    table = np.vstack([counts, rest])
    shuffled = rng.permutation(len(cells))
    by_cell = shuffled[np.argsort(cells[shuffled], kind="stable")]
    owner = np.empty(len(cells), np.int64)
    owner[by_cell] = np.repeat(np.tile(np.arange(owners + 1), width), table.T.ravel())
    ends = np.cumsum(table.sum(axis=1))
    return np.split(np.argsort(owner, kind="stable"), ends[:-1])[:owners]


def stratified(labels: Ints, take: int, rng: np.random.Generator) -> Ints:
    """Sorted positions of ``take`` items whose classes are in proportion to those of ``labels``."""
    return deal(labels, apportion(np.bincount(labels), take)[None], rng)[0]
