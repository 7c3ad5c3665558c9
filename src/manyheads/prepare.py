"""The data set and the partition that a config asks for."""

from __future__ import annotations

from pathlib import Path

from manyheads.config import Config
from manyheads.data.dataset import Dataset
from manyheads.data.partition import Partition, make_partition
from manyheads.data.sources import load


def load_dataset(config: Config) -> Dataset:
    """The data set that the config asks for."""
    return load(config.data.source, Path(config.data.dir) if config.data.dir else None, config.data.limit)


def draw_partition(config: Config, dataset: Dataset) -> Partition:
    """The partition that the config asks for."""
    return make_partition(
        config.partition.kind,
        dataset.train.labels,
        dataset.test.labels,
        classes=len(dataset.classes),
        clients=config.partition.clients,
        seed=config.run.seed,
        auxiliary=config.data.auxiliary,
        min_train=config.partition.min_train,
        validation=config.data.validation,
        options=config.partition.options,
        columns=dataset.train.columns,
    )
