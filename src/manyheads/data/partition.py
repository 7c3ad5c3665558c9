"""Who gets which images: an explicit, checked and storable object.

The rules are the same for every kind: the auxiliary set is taken out of the train split first, every client gets at
least ``min_train`` train images, and its test images come from the official test split, in proportion to its train
images class by class.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as to_safetensors

from manyheads.data.counts import Draw, checked_options, plan, whole_number
from manyheads.data.dataset import Dataset, check_labels
from manyheads.data.redraw import ALPHAS, first_accepted
from manyheads.data.rules import check_apart, check_room, check_share, least_size, set_apart, share_of_test
from manyheads.data.sampling import Ints, deal, stratified, stream
from manyheads.errors import InputError
from manyheads.storage import atomic

FORMAT = "manyheads partition 1"
GROUPS = ("train", "validation", "test")
ARRAYS = ("auxiliary", *GROUPS, *(f"{group}_sizes" for group in GROUPS))


@dataclass(frozen=True, eq=False)
class Partition:
    """The images of every client, as sorted positions in the two splits of a data set.

    Attributes:
        train: one int64 array a client, positions in the train split.
        validation: likewise; empty arrays unless asked for.
        test: one int64 array a client, positions in the test split; may be empty for a client.
        auxiliary: positions in the train split that no client has (D_s).
        description: what it is, in words.
        redraws: how many draws were refused because a client had too few images.
    """

    train: tuple[Ints, ...]
    validation: tuple[Ints, ...]
    test: tuple[Ints, ...]
    auxiliary: Ints
    description: str = ""
    redraws: int = 0

    @property
    def clients(self) -> int:
        """Number of clients."""
        return len(self.train)

    @cached_property
    def hash(self) -> str:
        """SHA-256 over all positions; the same before and after storing."""
        return _hash(self._arrays())

    def check(self, dataset: Dataset) -> None:
        """Raise InputError when this partition does not fit the data set or breaks a promise, by name."""
        if not len(self.train) == len(self.validation) == len(self.test) > 0:
            raise InputError("partition: train, validation and test must name the same clients, at least one")
        check_apart("train", [*self.train, *self.validation, self.auxiliary], len(dataset.train))
        check_apart("test", self.test, len(dataset.test))
        for client, train in enumerate(self.train):
            if not len(train):
                raise InputError(f"partition: client {client} has no train images")

    def save(self, path: Path | str) -> None:
        """Write the partition to a safetensors file: all of it or, when interrupted, nothing."""
        about = {"format": FORMAT, "description": self.description, "redraws": self.redraws, "hash": self.hash}
        # one metadata entry: the library would write several in random order
        metadata = {"about": json.dumps({**about, "check": _digest(about)})}
        atomic.write_bytes(Path(path), to_safetensors(self._arrays(), metadata))

    @classmethod
    def load(cls, path: Path | str) -> "Partition":
        """Read a partition written by ``save``.

        Raises:
            InputError: the file is missing, damaged, or something else.
        """
        try:
            with safe_open(str(path), framework="numpy") as file:
                about = json.loads((file.metadata() or {})["about"])
                arrays = {name: file.get_tensor(name) for name in ARRAYS}
            if about.pop("check") != _digest(about) or about["format"] != FORMAT or about["hash"] != _hash(arrays):
                raise ValueError
            parts = [np.split(arrays[name], np.cumsum(arrays[f"{name}_sizes"])[:-1]) for name in GROUPS]
        except FileNotFoundError:
            raise InputError(f"{path}: no such partition file") from None
        except (OSError, SafetensorError, KeyError, ValueError, TypeError, IndexError):
            raise InputError(f"{path}: damaged, or not a partition file of this version ({FORMAT})") from None
        train, kept, test = map(tuple, parts)
        return cls(train, kept, test, arrays["auxiliary"], about["description"], about["redraws"])

    def _arrays(self) -> dict[str, Ints]:
        arrays = {"auxiliary": self.auxiliary}
        for name, parts in zip(GROUPS, (self.train, self.validation, self.test), strict=True):
            arrays[f"{name}_sizes"] = np.array([len(part) for part in parts], np.int64)
            arrays[name] = np.concatenate(parts)
        return arrays


def make_partition(
    kind: str,
    train_labels: Ints,
    test_labels: Ints,
    *,
    classes: int,
    clients: int,
    seed: int,
    auxiliary: int | None = None,
    min_train: int | None = None,
    validation: float = 0.0,
    options: Mapping[str, Any] | None = None,
    columns: Mapping[str, Any] | None = None,
) -> Partition:
    """Draw a partition.

    Args:
        kind: a name in ``catalog.PARTITIONS``.
        train_labels: int64 labels of the train split, values in ``0..classes-1``.
        test_labels: int64 labels of the test split.
        classes: number of classes.
        clients: number of clients, 1 or more.
        seed: every draw has a stream of its own of this seed.
        auxiliary: size of D_s; None: 10 % of the train split, at most 5,000.
        min_train: fewest train images a client may have; None: 64, or 10 below 10,000 train images.
        validation: share of each client's images that is kept for validation, in [0, 1).
        options: the kind's options, see ``catalog.PARTITION_OPTIONS``.
        columns: further columns of the train split, for ``natural``.

    Raises:
        InputError: a value is out of range, or no draw gave every client enough images; says what would work.
    """
    options = checked_options(kind, options or {})
    clients = whole_number("partition.clients", clients)
    check_share(validation)
    check_labels(train_labels, classes, "train")
    taken, rest = set_apart(train_labels, auxiliary, seed)
    least = least_size(min_train, len(train_labels))
    check_room(clients, least, len(rest))
    here = {name: np.asarray(column)[rest] for name, column in (columns or {}).items()}

    def planned(**changed: float) -> tuple[Ints, Draw]:
        return plan(kind, train_labels[rest], classes, clients, {**options, **changed}, here)

    cells, draw = planned()
    larger = ((alpha, planned(alpha=alpha)[1]) for alpha in ALPHAS if alpha > options.get("alpha", np.inf))
    settings = ", ".join(f"{name}={value}" for name, value in options.items() if value is not None)
    about = f"{kind}({settings}), {clients} clients"
    counts, redraws = first_accepted(draw, seed, least, validation, about, larger)
    return from_assignment(
        [rest[mine] for mine in deal(cells, counts, stream(seed, "images"))],
        train_labels,
        test_labels,
        classes=classes,
        seed=seed,
        auxiliary=taken,
        validation=validation,
        description=f"{about}, seed {seed}",
        redraws=redraws,
    )


def from_assignment(
    assignment: Sequence[Ints],
    train_labels: Ints,
    test_labels: Ints,
    *,
    classes: int,
    seed: int,
    auxiliary: Ints | None = None,
    validation: float = 0.0,
    description: str = "given",
    redraws: int = 0,
) -> Partition:
    """A partition from the train images of every client: adds validation and test images.

    Args:
        assignment: positions in the train split, one array a client.
        train_labels: int64 labels of the train split, values in ``0..classes-1``.
        test_labels: int64 labels of the test split.
        classes: number of classes.
        seed: decides which test and validation images a client gets.
        auxiliary: positions in the train split that are kept at the server; none when left out.
        validation: share of each client's images that is kept for validation, in [0, 1).
        description: what it is, in words; how many train images are used is added where some are left over.
        redraws: how many draws were refused before.

    Raises:
        InputError: positions overlap or lie outside the train split, or a client has none.
    """
    check_share(validation)
    check_labels(train_labels, classes, "train")
    check_labels(test_labels, classes, "test")
    owned = [np.sort(np.asarray(mine, np.int64)) for mine in assignment]
    held_back = np.sort(np.asarray([] if auxiliary is None else auxiliary, np.int64))
    check_apart("train", [*owned, held_back], len(train_labels))
    train, kept = [], []
    for client, mine in enumerate(owned):
        if not len(mine):
            raise InputError(f"partition: client {client} of {len(owned)} has no train images")
        size = int(len(mine) * validation)
        chosen = stratified(train_labels[mine], size, stream(seed, "validation", client))
        kept.append(mine[chosen])
        train.append(np.delete(mine, chosen))
    held = np.stack([np.bincount(train_labels[mine], minlength=classes) for mine in train])
    available = np.bincount(test_labels, minlength=classes)
    shares = [share_of_test(held[:, c], int(available[c])) for c in range(classes)]
    test = deal(test_labels, np.stack(shares, axis=1), stream(seed, "test"))
    used, usable = sum(map(len, owned)), len(train_labels) - len(held_back)
    if used < usable:
        description += f", {used} of {usable} train images used"
    return Partition(tuple(train), tuple(kept), tuple(test), held_back, description, redraws)


def _hash(arrays: Mapping[str, Ints]) -> str:
    digest = hashlib.sha256()
    for name in ARRAYS:
        digest.update(f"{name} {len(arrays[name])} ".encode())
        digest.update(arrays[name].astype("<i8").tobytes())
    return digest.hexdigest()


def _digest(about: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()
