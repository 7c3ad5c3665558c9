"""Partitions made by Flower Datasets."""

from typing import Any

import numpy as np

from manyheads.data.dataset import Dataset
from manyheads.data.partition import Partition, from_assignment
from manyheads.data.rules import least_size, set_apart
from manyheads.errors import InputError

POSITION = "manyheads_position"


def from_partitioner(
    partitioner: Any,
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
        partitioner: anything with ``dataset`` (set once), ``num_partitions`` and ``load_partition(i)``, such as a
            ``flwr_datasets.partitioner.Partitioner``. It has no data set assigned yet; its ``partition_by`` must name
            one of these columns.
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
    taken, rest = set_apart(labels, auxiliary, seed)
    table = {name: values[rest] for name, values in dataset.train.columns.items()}
    name = type(partitioner).__name__
    try:
        partitioner.dataset = datasets.Dataset.from_dict({**table, label: labels[rest], POSITION: rest})
        parts = [partitioner.load_partition(i)[POSITION] for i in range(partitioner.num_partitions)]
    except Exception as error:  # foreign code: whatever it raises is about this partitioner
        raise InputError(f"partition: {name} failed: {' '.join(str(error).split())}") from None
    least, sizes = least_size(min_train, len(labels)), [len(part) for part in parts]
    if not sizes:
        raise InputError(f"partition: {name} made no partitions")
    if min(sizes) < least:
        smallest = f"client {sizes.index(min(sizes))} only {min(sizes)} train images"
        raise InputError(f"partition.min_train = {least}: {name} gives {smallest}")
    return from_assignment(
        [np.array(list(part), np.int64) for part in parts],
        labels,
        dataset.test.labels,
        classes=len(dataset.classes),
        seed=seed,
        auxiliary=taken,
        validation=validation,
        description=f"{name}, {len(sizes)} clients",
    )
