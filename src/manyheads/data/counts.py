"""How many images of each kind every client gets: one small table a draw, before any image is touched."""

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from manyheads.data.catalog import PARTITION_OPTIONS, PARTITIONS
from manyheads.data.sampling import Ints, apportion
from manyheads.errors import InputError, unknown

Draw = Callable[[np.random.Generator], Ints]
ALPHA_RANGE = (1e-4, 1e6)  # outside of it the gamma function over- or underflows
ALPHAS = tuple(float(f"{step}e{power}") for power in range(-3, 6) for step in (1, 2, 5))  # tried for a hint


class Plan(NamedTuple):
    """A partition before its draws: each image lies in a cell, and ``draw`` says how many of a cell a client gets.

    Attributes:
        cells: the cell of every image, shape ``[n]``: its class, its value of a column, or 0 when kinds are mixed.
        draw: from a generator to counts of shape ``[clients, cells]``.
    """

    cells: Ints
    draw: Draw


def plan(
    kind: str, labels: Ints, classes: int, clients: int, options: Mapping[str, Any], columns: Mapping[str, Any]
) -> Plan:
    """The plan of a partition kind for these labels.

    Raises:
        InputError: the kind or an option is unknown, or an option's value makes no sense for these labels.
    """
    values = checked_options(kind, options)
    per_class = np.bincount(labels, minlength=classes)
    everything = np.zeros_like(labels)
    total = np.array([len(labels)])
    match kind:
        case "dirichlet":
            return Plan(labels, _dirichlet(per_class, clients, values["alpha"]))
        case "quantity":
            return Plan(everything, _dirichlet(total, clients, values["alpha"]))
        case "iid":
            even = apportion(np.ones(clients, np.int64), len(labels))[:, None]
            return Plan(everything, lambda rng: even)
        case "classes":
            return Plan(labels, _classes(per_class, clients, values["n"]))
        case "shards":
            return Plan(labels, _shards(per_class, clients, values["n"]))
        case "similarity":
            return Plan(labels, _similarity(per_class, clients, values["s"], values["samples"]))
        case _:
            return _natural(clients, values["column"], columns)


def checked_options(kind: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a kind with its defaults filled in; values are checked as far as that needs no data.

    Raises:
        InputError: an unknown kind or option, or a value outside its range.
    """
    if kind not in PARTITIONS:
        raise InputError(f"partition.kind: {unknown('partition', kind, PARTITIONS)}")
    defaults = PARTITION_OPTIONS[kind]
    for name in options:
        if name not in defaults:
            if not defaults:
                raise InputError(f"partition.{name}: {kind} has no options")
            raise InputError(f"partition: {unknown(f'option of {kind}', name, defaults)}")
    values = {**defaults, **options}
    for name, value in values.items():
        if name == "alpha":
            _number(name, value, *ALPHA_RANGE, "a number from 0.0001 to 1000000, such as 0.1")
        elif name == "s":
            _number(name, value, 0, 100, "a percentage from 0 to 100")
        elif name == "n" or (name == "samples" and value is not None):
            whole_number(f"partition.{name}", value)
    return values


def whole_number(field: str, value: int | None, least: int = 1) -> int:
    """The value itself. Raises InputError when it is not a whole number of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise InputError(f"{field} = {value!r}: must be a whole number of {least} or more")
    return int(value)


def _number(name: str, value: object, low: float, high: float, wanted: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise InputError(f"partition.{name} = {value!r}: must be {wanted}")


def _dirichlet(sizes: Ints, clients: int, alpha: float) -> Draw:
    """Every cell is cut at the running sums of its own shares from Dir(alpha), without balancing."""

    def draw(rng: np.random.Generator) -> Ints:
        shares = rng.dirichlet(np.full(clients, alpha), size=len(sizes))
        cuts = np.floor(np.cumsum(shares, axis=1) * sizes[:, None]).astype(np.int64)
        cuts[:, -1] = sizes  # the last running sum may fall short of 1 by rounding
        return np.diff(np.minimum(cuts, sizes[:, None]), axis=1, prepend=0).T

    return draw


def _classes(sizes: Ints, clients: int, n: int) -> Draw:
    """Every client takes the n classes that fewest have taken so far; ties are broken at random."""
    present = np.flatnonzero(sizes)
    if n > len(present):
        raise InputError(f"partition.n = {n}: only {len(present)} classes have images; choose at most {len(present)}")
    if n * clients < len(present):
        least = math.ceil(len(present) / clients)
        raise InputError(
            f"partition.n = {n}: {clients} clients with {n} classes each leave some of the {len(present)} classes"
            f" to nobody; choose n = {least} or more"
        )

    def draw(rng: np.random.Generator) -> Ints:
        holds = np.zeros((clients, len(sizes)), np.int64)
        taken = np.zeros(len(present), np.int64)
        for client, luck in enumerate(rng.random((clients, len(present)))):
            mine = np.lexsort((luck, taken))[:n]
            taken[mine] += 1
            holds[client, present[mine]] = 1
        return _cut(holds, sizes)

    return draw


def _shards(sizes: Ints, clients: int, n: int) -> Draw:
    """Images in the order of their classes, cut into ``clients * n`` equal shards; n of them, at random, a client."""
    shards = clients * n
    ends = np.cumsum(apportion(np.ones(shards, np.int64), int(sizes.sum())))
    inside = np.minimum(ends[:, None], np.cumsum(sizes)[None])  # images up to a shard's end and up to a class's end
    lower = np.maximum(inside - (np.cumsum(sizes) - sizes)[None], 0)
    per_shard = np.diff(lower, axis=0, prepend=0)

    def draw(rng: np.random.Generator) -> Ints:
        counts: Ints = per_shard[rng.permutation(shards)].reshape(clients, n, -1).sum(axis=1)
        return counts

    return draw


def dominant_groups(classes: int, clients: int) -> list[list[int]]:
    """The groups of dominant classes that the clients take in turn.

    With 10 classes and 5 or more clients: {0,1,2}, {2,3,4}, {4,5,6}, {6,7,8}, {8,9,0}, as in FedMate's public code,
    the predecessor of FedeCouple. In general at most 5 groups, evenly spaced around the circle of classes, each half
    again as wide as the space between two, so that neighbours overlap and every class is in at least one.
    """
    groups = min(5, classes, clients)
    width = max(-(-classes // groups), 3 * classes // (2 * groups))
    width = min(width, classes)
    return [[(g * classes // groups + j) % classes for j in range(width)] for g in range(groups)]


def _similarity(sizes: Ints, clients: int, s: float, samples: int | None) -> Draw:
    """Part of every client's images from all classes, the rest from the dominant classes of its group.

    Without ``samples`` all images are used: s % of each class go evenly to everybody, the rest evenly to the clients
    whose group holds the class. With it every client gets exactly so many, spread evenly over the classes.
    """
    present = np.flatnonzero(sizes)
    groups = dominant_groups(len(present), clients)
    dominant = np.zeros((clients, len(sizes)), np.int64)
    for client in range(clients):
        dominant[client, present[groups[client % len(groups)]]] = 1
    everybody = np.zeros_like(dominant)
    everybody[:, present] = 1
    if samples is None:
        uniform = np.round(sizes * (s / 100)).astype(np.int64)
        counts = _cut(everybody, uniform) + _cut(dominant, sizes - uniform)
        return lambda rng: counts

    def counts_of(each: int) -> Ints:
        uniform = round(each * s / 100)
        return _spread(everybody, uniform) + _spread(dominant, each - uniform)

    counts = counts_of(samples)
    lacking = counts.sum(axis=0) - sizes
    if lacking.max() > 0:
        fits = bisect_left(range(samples), True, key=lambda each: bool(np.any(counts_of(each).sum(axis=0) > sizes))) - 1
        tight = int(lacking.argmax())
        raise InputError(
            f"partition.samples = {samples}: {clients} clients would need {lacking[tight] + sizes[tight]} images of"
            f" class {tight}, which has {sizes[tight]}; choose samples = {fits} or fewer clients"
        )
    return lambda rng: counts


def _natural(clients: int, column: str, columns: Mapping[str, Any]) -> Plan:
    """Whole values of the column are shuffled and dealt in turn; with as many clients as values each gets one."""
    if column not in columns:
        if not columns:
            raise InputError(f"partition.column = {column!r}: this data set has no columns besides the labels")
        raise InputError(f"partition.column: {unknown('column', column, columns)}")
    values, cells = np.unique(np.asarray(columns[column]), return_inverse=True)
    if clients > len(values):
        raise InputError(
            f"partition.clients = {clients}: column {column!r} has {len(values)} values; choose at most {len(values)}"
        )
    sizes = np.bincount(cells)

    def draw(rng: np.random.Generator) -> Ints:
        counts = np.zeros((clients, len(values)), np.int64)
        counts[np.arange(len(values)) % clients, rng.permutation(len(values))] = 1
        return counts * sizes

    return Plan(cells.astype(np.int64), draw)


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
