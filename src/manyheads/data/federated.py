"""``Federation``: one data set cut by one partition, as each party sees it."""

from __future__ import annotations

from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from manyheads.contract.data import Data, Pixels
from manyheads.data.dataset import Dataset
from manyheads.data.partition import Partition


class Federation:
    """Views of a data set: clients' train data, the auxiliary set, the test set; all index the same images."""

    def __init__(self, dataset: Dataset, partition: Partition) -> None:
        partition.check(dataset)
        self.dataset, self.partition = dataset, partition
        self.classes = len(dataset.classes)
        self.shape = dataset.shape
        self.clients = partition.clients

    @cached_property
    def test(self) -> Data:
        """The whole test split."""
        return self._data("test", np.arange(len(self.dataset.test.labels)))

    @cached_property
    def auxiliary(self) -> Data | None:
        """D_s, at the server; None where it is empty."""
        return self._data("train", self.partition.auxiliary) if len(self.partition.auxiliary) else None

    def train(self, client: int) -> Data:
        """A client's train data."""
        return self._data("train", self.partition.train[client])

    def validation(self, client: int) -> Data:
        """A client's validation data, which may be empty."""
        return self._data("train", self.partition.validation[client])

    def test_rows(self, client: int) -> Tensor:
        """A client's test images: places in ``test``, which may be none."""
        return torch.from_numpy(self.partition.test[client])

    def counts(self) -> dict[str, object]:
        """Labels held by every client and by the auxiliary set, for pictures."""
        labels = self.dataset.train.labels
        return {
            "name": self.dataset.name,
            "classes": list(self.dataset.classes),
            "counts": [np.bincount(labels[rows], minlength=self.classes).tolist() for rows in self.partition.train],
            "auxiliary": np.bincount(labels[self.partition.auxiliary], minlength=self.classes).tolist(),
        }

    def _data(self, split: Literal["train", "test"], rows: NDArray[np.int64]) -> Data:
        images, labels = self._tensors[split]
        index = torch.from_numpy(rows)
        return Data(Pixels(images, self.dataset.mean, self.dataset.std), index, labels[index])

    @cached_property
    def _tensors(self) -> dict[str, tuple[Tensor, Tensor]]:
        splits = {"train": self.dataset.train, "test": self.dataset.test}
        # torch wants memory that may be written, though nobody does: read-only arrays are copied
        return {name: (_tensor(split.images), _tensor(split.labels)) for name, split in splits.items()}


def _tensor(array: NDArray[Any]) -> Tensor:
    return torch.from_numpy(np.require(array, requirements=["C", "W"]))
