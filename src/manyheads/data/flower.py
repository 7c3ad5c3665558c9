"""Partitions made by Flower Datasets: any object with its partitioners' three names will do."""

from typing import TYPE_CHECKING, Protocol

import numpy as np

from manyheads.data.dataset import Dataset
from manyheads.data.partition import Partition, from_assignment
from manyheads.data.rules import least_size, take_auxiliary
from manyheads.data.sampling import Ints
from manyheads.errors import InputError

if TYPE_CHECKING:
    import datasets

POSITION = "manyheads_position"


class Partitioner(Protocol):
    """What is used of ``flwr_datasets.partitioner.Partitioner``: set its data set once, then ask for the parts."""

    dataset: "datasets.Dataset"

    @property
    def num_partitions(self) -> int:
        """How many parts there are."""
        ...

    def load_partition(self, partition_id: int) -> "datasets.Dataset":
        """One part of the data set."""
        ...


def from_partitioner(
    partitioner: Partitioner,
    dataset: Dataset,
    *,
    seed: int,
    auxiliary: int | None = None,
    min_train: int | None = None,
    validation: float = 0.0,
    label: str = "label",
) -> Partition:
    """A partition drawn by a Flower Datasets partitioner, with our auxiliary set, test and validation images.

    The partitioner sees the train split without the auxiliary set, as a data set with the column ``label`` and the
    split's own columns. It uses its own seed.

    Args:
        partitioner: has no data set assigned yet; its ``partition_by`` must name one of these columns.
        dataset: what to partition.
        seed: for the auxiliary, validation and test images.
        auxiliary: size of D_s; None: 10 % of the train split, at most 5,000.
        min_train: fewest images a client may have; None: 64, or 10 below 10,000 train images.
        validation: share of each client's images that is kept for validation, in [0, 1).
        label: what to call the label column.

    Raises:
        InputError: the partitioner fails, or gives a client too few images or one image to two clients.
    """
    try:
        import datasets
    except ImportError:
        raise InputError("Flower partitioners need the datasets library: pip install 'manyheads[hub]'") from None
    labels = dataset.train.labels
    taken = take_auxiliary(labels, auxiliary, classes=len(dataset.classes), seed=seed)
    rest = np.setdiff1d(np.arange(len(labels)), taken, assume_unique=True)
    table = {name: values[rest] for name, values in dataset.train.columns.items()}
    name = type(partitioner).__name__
    try:
        partitioner.dataset = datasets.Dataset.from_dict({**table, label: labels[rest], POSITION: rest})
        parts = [partitioner.load_partition(i)[POSITION] for i in range(partitioner.num_partitions)]
    except Exception as error:  # foreign code: whatever it raises is about this partitioner
        raise InputError(f"partition: {name} failed: {' '.join(str(error).split())}") from None
    assignment: list[Ints] = [np.asarray(list(part), np.int64) for part in parts]
    if not assignment:
        raise InputError(f"partition: {name} made no partitions")
    least, sizes = least_size(min_train, len(labels)), [len(part) for part in assignment]
    if min(sizes) < least:
        raise InputError(
            f"partition.min_train = {least}: {name} gives client {int(np.argmin(sizes))} only {min(sizes)} train images"
        )
    used = f", {sum(sizes)} of {len(rest)} train images used" if sum(sizes) < len(rest) else ""
    return from_assignment(
        assignment,
        labels,
        dataset.test.labels,
        classes=len(dataset.classes),
        seed=seed,
        auxiliary=taken,
        validation=validation,
        description=f"{name}, {len(sizes)} clients{used}",
    )
