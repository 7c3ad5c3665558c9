"""The package from Python: with stored runs and without, and with data and a network of one's own."""

from typing import Any

import numpy as np
import pytest
from torch import nn

from manyheads import Config, Experiment, compare
from manyheads.data.dataset import Dataset, dataset_from_arrays
from manyheads.errors import InputError
from manyheads.events import Event, RoundDone
from manyheads.models import SplitModel


def without_seconds(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]


def assert_same(one: Any, other: Any) -> None:
    """Two results have the same bits."""
    assert one.server == other.server
    assert one.private == other.private
    assert without_seconds(one.rows) == without_seconds(other.rows)


class Net(nn.Module):
    """A convolutional network of somebody who has never heard of this package."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.drop = nn.Dropout(0.5)
        self.classifier = nn.Linear(4 * 4 * 4, 3)

    def forward(self, x):
        return self.classifier(self.drop(self.norm(self.conv(x)).relu().flatten(1)))


def own_network() -> SplitModel:
    return SplitModel.from_module(Net(), head="classifier")


def own_data(seed: int = 0) -> Dataset:
    """Three classes of 6x6 colour images that differ in one channel's brightness."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, 150)
    images = rng.integers(0, 100, (150, 6, 6, 3)).astype(np.uint8)
    images[np.arange(150), :, :, labels] += 100
    return dataset_from_arrays(images, labels, name="colours", classes=["red", "green", "blue"])


@pytest.fixture
def own(tiny: Config) -> Config:
    """The tiny experiment without a limit, in few enough rounds."""
    return tiny.with_values({"data.limit": None, "data.auxiliary": 15, "train.rounds": 4})


def test_in_memory_and_stored_and_anew(tmp_path, small, bits):
    memory = Experiment(small).run()
    stored = Experiment(small).run(tmp_path / "run")
    assert memory.folder is None
    assert stored.folder == tmp_path / "run"
    assert_same(memory, stored)
    on_disk = bits(tmp_path / "run")
    assert (on_disk["server"], on_disk["private"]) == (memory.server, memory.private)
    assert on_disk["rows"] == without_seconds(memory.rows)
    assert len(memory.rows) == 7
    other = Experiment(small.with_seed(1)).run()
    assert other.server != memory.server


def test_compare_in_memory_and_stored(tmp_path, tiny, bits):
    memory = compare(tiny, ["fedavg", "fedper"], seeds=[0, 1])
    stored = compare(tiny, ["fedavg", "fedper"], seeds=[0, 1], folder=tmp_path / "both")
    assert list(memory) == list(stored) == ["fedavg, seed 0", "fedper, seed 0", "fedavg, seed 1", "fedper, seed 1"]
    for label, result in memory.items():
        assert_same(result, stored[label])
        method, seed = label.split(", seed ")
        alone = Experiment(tiny.with_method(method).with_seed(int(seed))).run()
        assert_same(result, alone)
    cohorts = {label: [row["cohort"] for row in result.rows] for label, result in memory.items()}
    assert cohorts["fedavg, seed 0"] == cohorts["fedper, seed 0"] != cohorts["fedavg, seed 1"]
    with pytest.raises(InputError, match="already holds a comparison"):
        compare(tiny, ["fedavg"], folder=tmp_path / "both")


def test_own_data_and_an_own_network(tmp_path, own, bits):
    whole = Experiment(own, dataset=own_data(), model=own_network).run(tmp_path / "whole")
    assert whole.accuracy() > 0.6  # by chance it is a third
    assert "head.weight" in next(iter(whole.private.values())).model

    class StoppedError(Exception):
        """The person's own code failed."""

    def stop(event: Event) -> None:
        if isinstance(event, RoundDone) and event.round == 1:
            raise StoppedError

    with pytest.raises(StoppedError):
        Experiment(own, dataset=own_data(), model=own_network).run(tmp_path / "run", stop)
    resumed = Experiment.resume(tmp_path / "run", dataset=own_data(), model=own_network)
    assert_same(resumed, whole)
    assert bits(tmp_path / "run") == bits(tmp_path / "whole")
    # A finished run can be resumed: it gives its result and computes nothing.
    events: list[Event] = []
    again = Experiment.resume(tmp_path / "run", dataset=own_data(), model=own_network, on_event=events.append)
    assert again == resumed
    assert not [event for event in events if isinstance(event, RoundDone)]


def test_resuming_with_other_data_is_refused(tmp_path, own, files):
    Experiment(own, dataset=own_data(), model=own_network).run(tmp_path / "run")
    before = files(tmp_path)
    with pytest.raises(InputError, match="holds other images or labels than when it began"):
        Experiment.resume(tmp_path / "run", dataset=own_data(seed=1), model=own_network)
    assert files(tmp_path) == before


@pytest.mark.parametrize(
    ("images", "labels", "line"),
    [
        (np.zeros((10, 6, 6, 3)), np.arange(10) % 3, "images must be uint8"),
        (np.zeros((10, 6, 6, 3), np.uint8), np.arange(9) % 3, "labels: 9 values for 10 images"),
        (np.zeros((10, 6, 6, 3), np.uint8), np.arange(10) % 3 - 1, "label -1 of image 0 must be 0 or more"),
        (np.zeros((10, 6, 6, 3), np.uint8), np.zeros(10), "labels must be whole numbers, not float64"),
    ],
)
def test_own_data_that_cannot_be_used(images, labels, line):
    with pytest.raises(InputError, match=line):
        dataset_from_arrays(images, labels)


def test_an_own_network_that_does_not_fit_the_data(tmp_path, own):
    data = own_data()
    two = dataset_from_arrays(data.train.images, data.train.labels % 2)
    with pytest.raises(InputError, match="the model's head gives 3 logits, but the data has 2 classes"):
        Experiment(own, dataset=two, model=own_network).run(tmp_path / "run")
    assert not (tmp_path / "run").exists()
