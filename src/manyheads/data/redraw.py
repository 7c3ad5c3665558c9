"""Draw counts until every client has enough images, or say in one line what would work."""

import time
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from manyheads.data.counts import Draw
from manyheads.data.sampling import Ints, stream
from manyheads.errors import InputError

MAX_DRAWS = 1000
SECONDS = 0.7  # for the draws; what is left of a second goes to the search for an alpha that works
HINT_SECONDS = 0.2
HINT_DRAWS = 3


class Wanted(NamedTuple):
    """What a draw is checked against.

    Attributes:
        seed: draw i uses stream i of this seed, whatever the draws before it did.
        least: the fewest train images a client may have.
        validation: the share of a client's images that does not count, in [0, 1).
    """

    seed: int
    least: int
    validation: float

    def counts(self, draw: Draw, attempt: int) -> tuple[Ints, int]:
        """The counts of this attempt, and the train size of its smallest client."""
        counts = draw(stream(self.seed, "partition", attempt))
        totals = counts.sum(axis=1)
        return counts, int((totals - validation_sizes(totals, self.validation)).min())


def validation_sizes(totals: Ints, share: float) -> Ints:
    """How many of a client's images are for validation: the share, rounded down."""
    sizes: Ints = np.minimum(np.floor(totals * share).astype(np.int64), np.maximum(totals - 1, 0))
    return sizes


def first_accepted(
    draw: Draw, wanted: Wanted, about: str, larger: Iterable[tuple[float, Draw]] = ()
) -> tuple[Ints, int]:
    """The first draw in which every client has enough images.

    Only a failure depends on the clock: which draw is accepted follows from the seed alone.

    Args:
        draw: makes counts of shape ``[clients, cells]``.
        wanted: the seed and the least size.
        about: what is drawn, for the message.
        larger: the same draw with larger values of alpha, nearest first, to look for one that works.

    Returns:
        The counts, and the number of draws refused before them.

    Raises:
        InputError: 1,000 draws, or one second, were not enough; names the best minimum and what would work.
    """
    start, best, attempt = time.monotonic(), 0, 0
    while attempt < MAX_DRAWS and time.monotonic() - start < SECONDS:
        counts, smallest = wanted.counts(draw, attempt)
        if smallest >= wanted.least:
            return counts, attempt
        best, attempt = max(best, smallest), attempt + 1
    works = [f"min_train = {best}"] if best else []
    works += [f"alpha = {alpha:g}" for alpha in _first_working(larger, wanted)]
    raise InputError(
        f"partition.min_train = {wanted.least}: in {attempt} draws of {about} (seed {wanted.seed}) the smallest client"
        f" had at most {best} train images; {' or '.join(works or ['fewer clients'])} would work"
    )


def _first_working(larger: Iterable[tuple[float, Draw]], wanted: Wanted) -> Iterator[float]:
    deadline = time.monotonic() + HINT_SECONDS
    for alpha, draw in larger:
        for attempt in range(HINT_DRAWS):
            if time.monotonic() > deadline:
                return
            if wanted.counts(draw, attempt)[1] >= wanted.least:
                yield alpha
                return
