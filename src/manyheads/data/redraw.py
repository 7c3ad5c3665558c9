"""Draw counts until every client has enough images, or say in one line what would work."""

import time
from collections.abc import Iterable

from manyheads.data.counts import Draw
from manyheads.data.sampling import Ints, stream
from manyheads.errors import InputError

MAX_DRAWS = 1000
SECONDS = 0.7  # what is left of a second goes to the search for an alpha that works
ALPHAS = tuple(float(f"{step}e{power}") for power in range(-3, 4) for step in (1, 2, 5))  # tried, three draws each


def first_accepted(
    draw: Draw, seed: int, least: int, validation: float, about: str, larger: Iterable[tuple[float, Draw]] = ()
) -> tuple[Ints, int]:
    """The counts of the first draw in which every client has ``least`` train images, and how many were refused before.

    The share ``validation`` of a client's images does not count. Only a failure depends on the clock: draw i uses
    stream i of the seed. Raises InputError when 1,000 draws, or one second, were not enough: it names the best minimum
    and what would work; for that ``larger`` has the same draw with larger values of alpha, nearest first.
    """

    def attempt(draw: Draw, number: int) -> tuple[Ints, int]:
        counts = draw(stream(seed, "partition", number))
        totals = counts.sum(axis=1)
        return counts, int((totals - (totals * validation).astype(int)).min())

    start, best, number = time.monotonic(), 0, 0
    while number < MAX_DRAWS and time.monotonic() - start < SECONDS:
        counts, smallest = attempt(draw, number)
        if smallest >= least:
            return counts, number
        best, number = max(best, smallest), number + 1
    alphas = (alpha for alpha, other in larger if any(attempt(other, i)[1] >= least for i in range(3)))
    alpha = next(alphas, None)
    works = [f"min_train = {best}"] if best else []
    works += [f"alpha = {alpha:g}"] if alpha else []
    raise InputError(
        f"partition.min_train = {least}: in {number} draws of {about} (seed {seed}) the smallest client"
        f" had at most {best} train images; {' or '.join(works or ['fewer clients'])} would work"
    )
