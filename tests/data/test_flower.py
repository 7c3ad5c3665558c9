from typing import Any

import numpy as np
import pytest

from manyheads.data.dataset import Dataset, dataset_from_arrays
from manyheads.data.flower import from_partitioner
from manyheads.errors import InputError

pytest.importorskip("datasets")


class ByParity:
    """Flower's three names: even labels to one part, odd ones to the other; sees its data set only once."""

    def __init__(self, parts: int = 2, overlap: bool = False) -> None:
        self.num_partitions, self.overlap = parts, overlap
        self._dataset: Any = None

    @property
    def dataset(self) -> Any:
        return self._dataset

    @dataset.setter
    def dataset(self, value: Any) -> None:
        if self._dataset is not None:
            raise ValueError("the data set is\nalready assigned")
        self._dataset = value

    def load_partition(self, partition_id: int) -> Any:
        labels = np.array(self.dataset["label"])
        assert set(self.dataset.column_names) >= {"label", "writer"}
        return self.dataset.select(np.flatnonzero((labels % self.num_partitions == partition_id) | self.overlap))


def a_dataset() -> Dataset:
    labels = np.arange(200) % 4
    return dataset_from_arrays(np.zeros((200, 2, 2), np.uint8), labels, columns={"writer": labels})


def test_a_flower_partitioner_keeps_our_promises() -> None:
    data = a_dataset()
    p = from_partitioner(ByParity(), data, seed=0, auxiliary=20, validation=0.1)
    p.check(data)
    assert p.description == "ByParity, 2 clients"
    assert len(p.auxiliary) == 20
    for client in (0, 1):
        for split, mine in ((data.train, p.train), (data.train, p.validation), (data.test, p.test)):
            assert set(split.labels[mine[client]]) == {client, client + 2}
    assert sum(len(mine) for mine in (*p.train, *p.validation)) == 140


@pytest.mark.parametrize(
    ("partitioner", "message"),
    [
        (ByParity(parts=8), "min_train = 10: ByParity gives client 4 only 0 train images"),
        (ByParity(overlap=True), "occurs more than once"),
        (ByParity(parts=0), "made no partitions"),
    ],
)
def test_partitions_that_break_a_promise_are_refused(partitioner: ByParity, message: str) -> None:
    with pytest.raises(InputError, match=message):
        from_partitioner(partitioner, a_dataset(), seed=0)


def test_a_failing_partitioner_is_named_in_one_line() -> None:
    partitioner = ByParity()
    from_partitioner(partitioner, a_dataset(), seed=0)
    with pytest.raises(InputError, match="ByParity failed: the data set is already assigned"):
        from_partitioner(partitioner, a_dataset(), seed=0)
