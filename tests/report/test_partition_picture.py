from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread
from numpy.typing import NDArray

from manyheads.data.partition import Partition
from manyheads.report.partition import plot_counts, plot_partition


def parts(train: list[list[int]], auxiliary: list[int]) -> Partition:
    of_clients = tuple(np.array(indices) for indices in train)
    nothing = tuple(np.array([], dtype=np.int64) for _ in train)
    return Partition(of_clients, nothing, nothing, np.array(auxiliary, dtype=np.int64), "by hand", 0)


@pytest.mark.parametrize(("clients", "classes"), [(1, 2), (20, 10), (40, 26), (100, 100), (200, 10), (1000, 62)])
def test_pictures_of_any_size(clients: int, classes: int, tmp_path: Path) -> None:
    counts = np.random.default_rng(0).multinomial(200, np.full(classes, 1 / classes), size=clients)
    counts[:, 0] = 0
    counts[0, 0] = 1
    names = [f"a rather long class name {place}" for place in range(classes)]
    plot_counts(counts, np.full(classes, 5), names, "by hand", tmp_path / "partition.png")
    picture = imread(tmp_path / "partition.png")
    assert picture.shape[:2] == (800, 1400)
    assert np.mean(picture[..., :3].min(axis=2) < 0.99) > 0.05


def test_a_partition_is_counted_from_its_indices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    labels = np.array([0, 1, 2, 2, 1, 0, 2])
    partition = parts([[0, 1, 5], [2, 3]], [4, 6])
    drawn: list[list[list[int]] | list[int]] = []

    def record(counts: NDArray[np.int64], auxiliary: NDArray[np.int64], *rest: object) -> None:
        drawn.extend([counts.tolist(), auxiliary.tolist()])
        assert rest == (["x", "y", "z"], partition.description, tmp_path / "partition.png")

    monkeypatch.setattr("manyheads.report.partition.plot_counts", record)
    plot_partition(partition, labels, ["x", "y", "z"], tmp_path / "partition.png")
    assert drawn == [[[2, 1, 0], [0, 0, 2]], [0, 1, 1]]


def test_no_auxiliary_set(tmp_path: Path) -> None:
    partition = parts([[0, 1], [2]], [])
    plot_partition(partition, np.array([0, 1, 1]), ["x", "y"], tmp_path / "partition.png")
    assert imread(tmp_path / "partition.png").shape[:2] == (800, 1400)
