"""How many images of each kind every client gets: one small table a draw, before any image is touched."""

from bisect import bisect_right
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from manyheads.data.catalog import PARTITION_OPTIONS, PARTITIONS
from manyheads.data.sampling import Ints, apportion
from manyheads.errors import InputError, unknown

Draw = Callable[[np.random.Generator], Ints]
RANGES = {"alpha": (0.0001, 1_000_000), "s": (0, 100)}  # outside of alpha's the gamma function over- or underflows


def plan(
    kind: str, labels: Ints, classes: int, clients: int, options: Mapping[str, Any], columns: Mapping[str, Any]
) -> tuple[Ints, Draw]:
    """The cell of every image, and a draw: how many images of each cell a client gets, shape ``[clients, cells]``.

    The cell is the image's class, its value of a column, or 0 when classes are mixed. Raises InputError when a column
    is missing or an option's value makes no sense for these labels.
    """
    draws: Mapping[str, Callable[..., Draw]] = {
        "dirichlet": _dirichlet,
        "quantity": _dirichlet,
        "iid": _iid,
        "classes": _classes,
        "shards": _shards,
        "similarity": _similarity,
        "natural": _natural,
    }
    if kind == "natural":
        cells, options = _values(clients, options["column"], columns), {}
    else:
        cells = np.zeros_like(labels) if kind in ("quantity", "iid") else labels
    sizes = np.bincount(cells, minlength=classes if cells is labels else 1)
    return cells, draws[kind](sizes, clients, **options)


def checked_options(kind: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a kind with its defaults. Raises InputError: unknown kind or option, or a value out of range."""
    if kind not in PARTITIONS:
        raise InputError(f"partition.kind: {unknown('partition', kind, PARTITIONS)}")
    defaults = PARTITION_OPTIONS[kind]
    for name in options:
        if name not in defaults:
            raise InputError(f"partition: {unknown(f'option of {kind}', name, defaults)}")
    values = {**defaults, **options}
    for name, value in values.items():
        if name in RANGES:
            low, high = RANGES[name]
            if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
                wanted = f"a number from {low} to {high}, such as {defaults[name]}"
                raise InputError(f"partition.{name} = {value!r}: must be {wanted}")
        elif name == "n" or (name == "samples" and value is not None):
            whole_number(f"partition.{name}", value)
    return values


def whole_number(field: str, value: int, least: int = 1) -> int:
    """The value itself. Raises InputError when it is not a whole number of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise InputError(f"{field} = {value!r}: must be a whole number of {least} or more")
    return int(value)


def _dirichlet(sizes: Ints, clients: int, alpha: float) -> Draw:
    """Every cell is cut at the running sums of its own shares from Dir(alpha), without balancing."""

    def draw(rng: np.random.Generator) -> Ints:
        shares = rng.dirichlet(np.full(clients, alpha), size=len(sizes))
        cuts = np.floor(np.cumsum(shares, axis=1) * sizes[:, None]).astype(np.int64)
        cuts[:, -1] = sizes  # the last running sum may fall short of 1 by rounding
        return np.diff(np.minimum(cuts, sizes[:, None]), axis=1, prepend=0).T

    return draw


def _iid(sizes: Ints, clients: int) -> Draw:
    counts = _cut(np.ones((clients, 1), np.int64), sizes)
    return lambda rng: counts


def _classes(sizes: Ints, clients: int, n: int) -> Draw:
    """Every client takes the n classes that fewest have taken so far; ties are broken at random."""
    present = np.flatnonzero(sizes)
    if n > len(present):
        raise InputError(f"partition.n = {n}: only {len(present)} classes have images; choose at most {len(present)}")
    if n * clients < len(present):
        raise InputError(
            f"partition.n = {n}: {clients} clients with {n} classes each leave some of the {len(present)} classes"
            f" to nobody; choose n = {-(-len(present) // clients)} or more"
        )

    def draw(rng: np.random.Generator) -> Ints:
        holds = np.zeros((clients, len(sizes)), np.int64)
        for client, luck in enumerate(rng.random((clients, len(present)))):
            fewest = np.lexsort((luck, holds.sum(axis=0)[present]))
            holds[client, present[fewest[:n]]] = 1
        return _cut(holds, sizes)

    return draw


def _shards(sizes: Ints, clients: int, n: int) -> Draw:
    """Images in the order of their classes, cut into ``clients * n`` equal shards; n of them, at random, a client."""
    shards, classes = clients * n, len(sizes)
    shard = np.repeat(np.arange(shards), apportion(np.ones(shards, np.int64), int(sizes.sum())))
    label = np.repeat(np.arange(classes), sizes)
    per_shard = np.bincount(shard * classes + label, minlength=shards * classes).reshape(shards, classes)

    def draw(rng: np.random.Generator) -> Ints:
        counts: Ints = per_shard[rng.permutation(shards)].reshape(clients, n, classes).sum(axis=1)
        return counts

    return draw


def _similarity(sizes: Ints, clients: int, s: float, samples: int | None) -> Draw:
    """Part of every client's images from all classes, the rest from the dominant classes of its group.

    Without ``samples`` all images are used: s % of each class go evenly to everybody, the rest evenly to the clients
    whose group holds the class. With it every client gets exactly so many, spread evenly over the classes.
    """
    present = np.flatnonzero(sizes)
    groups = _dominant_groups(len(present), clients)
    everybody, dominant = np.zeros((2, clients, len(sizes)), np.int64)
    everybody[:, present] = 1
    for client in range(clients):
        dominant[client, present[groups[client % len(groups)]]] = 1
    if samples is None:
        uniform = np.round(sizes * (s / 100)).astype(np.int64)
        counts = _cut(everybody, uniform) + _cut(dominant, sizes - uniform)
        return lambda rng: counts

    def counts_of(each: int) -> Ints:
        uniform = round(each * s / 100)
        return _spread(everybody, uniform) + _spread(dominant, each - uniform)

    def lacking(each: int) -> int:
        return int((counts_of(each).sum(axis=0) - sizes).max())

    if lacking(samples) > 0:
        fits = bisect_right(range(samples), 0, key=lacking) - 1
        raise InputError(
            f"partition.samples = {samples}: a class has {lacking(samples)} images too few for {clients} clients;"
            f" choose samples = {fits} or fewer clients"
        )
    return lambda rng: counts_of(samples)


def _dominant_groups(classes: int, clients: int) -> list[list[int]]:
    """The groups of dominant classes that the clients take in turn.

    With 10 classes and 5 or more clients: {0,1,2}, {2,3,4}, {4,5,6}, {6,7,8}, {8,9,0}, as in FedMate's public code,
    the predecessor of FedeCouple. In general at most 5 groups, evenly spaced around the circle of classes, each half
    again as wide as the space between two, so that neighbours overlap and every class is in at least one.
    """
    groups = min(5, classes, clients)
    width = min(max(-(-classes // groups), 3 * classes // (2 * groups)), classes)
    return [[(g * classes // groups + j) % classes for j in range(width)] for g in range(groups)]


def _values(clients: int, column: str, columns: Mapping[str, Any]) -> Ints:
    """The number of the column's value for every image."""
    if column not in columns:
        known = unknown("column", column, columns) if columns else f"no {column!r}: this data set has no columns"
        raise InputError(f"partition.column: {known}")
    values, cells = np.unique(columns[column], return_inverse=True)
    if clients > len(values):
        raise InputError(
            f"partition.clients = {clients}: column {column!r} has {len(values)} values; choose at most {len(values)}"
        )
    return cells.astype(np.int64)


def _natural(sizes: Ints, clients: int) -> Draw:
    """Whole cells are shuffled and dealt in turn; with as many clients as cells each gets one."""

    def draw(rng: np.random.Generator) -> Ints:
        counts = np.zeros((clients, len(sizes)), np.int64)
        counts[np.arange(len(sizes)) % clients, rng.permutation(len(sizes))] = 1
        return counts * sizes

    return draw


def _cut(holds: Ints, sizes: Ints) -> Ints:
    """Each cell cut evenly among the clients that hold it; whose turn it is to get one more goes round."""
    columns, start = [], 0
    for cell, size in enumerate(sizes):
        columns.append(np.roll(apportion(np.roll(holds[:, cell], -start), int(size)), start))
        start = (start + int(size)) % len(holds)
    return np.stack(columns, axis=1)


def _spread(holds: Ints, each: int) -> Ints:
    """``each`` images for every client, evenly over the cells it holds; which cells give one more goes round."""
    width = holds.sum(axis=1)
    few, more = np.divmod(each, width)
    place = np.cumsum(holds, axis=1) - 1 - (np.arange(len(holds)) * more)[:, None]
    counts: Ints = holds * (few[:, None] + (place % width[:, None] < more[:, None]))
    return counts
