from pathlib import Path

import numpy as np
import pytest
import torch
import toys
from matplotlib.image import imread
from sklearn.metrics import silhouette_score

from manyheads.algorithms.fedper import FedPer
from manyheads.algorithms.local_only import LocalOnly
from manyheads.analysis import features
from manyheads.analysis.features import Panel, Sample, neighbours, places, silhouette, tsne, turned
from manyheads.analysis.trained import Trained
from manyheads.contract import Algorithm
from manyheads.data.dataset import Dataset, dataset_from_arrays
from manyheads.errors import InputError
from manyheads.models.registry import build

OWN = (3, 0)  # clients, not in order


def trained(algorithm: Algorithm, **values: object) -> Trained:
    experiment = toys.experiment(algorithm, train__rounds=1, **values)
    return Trained(experiment, experiment.run())


@pytest.fixture(scope="module")
def runs() -> list[Trained]:
    return [trained(FedPer()), trained(FedPer(), train__lr=0.05)]


@pytest.fixture(scope="module")
def alone() -> Trained:
    return trained(LocalOnly())


def backbone(run: Trained, weights: dict[str, torch.Tensor], rows: np.ndarray) -> np.ndarray:
    """Features by plain torch, from the data set's arrays."""
    data = run.experiment.dataset
    options = run.experiment.config.model.options
    network = build("cnn", shape=data.shape, classes=toys.CLASSES, options=options).backbone.eval()
    network.load_state_dict({name.removeprefix("backbone."): tensor for name, tensor in weights.items()})
    x = torch.from_numpy(data.test.images[rows]).float().permute(0, 3, 1, 2) / 255
    with torch.no_grad():
        return network((x - data.mean[0]) / data.std[0]).numpy()


def test_every_panel_shows_the_same_images_under_its_own_backbone(runs: list[Trained], tmp_path: Path) -> None:
    sample = Sample.of(runs, images=24, seed=3)
    panels = tsne(runs, tmp_path / "out.png", images=24, seed=3)
    assert np.array_equal(sample.y, runs[0].experiment.dataset.test.labels[sample.rows])
    for run, panel in zip(runs, panels, strict=True):
        expected = backbone(run, dict(run.shared_backbone), sample.rows)
        assert panel.features == pytest.approx(expected, abs=1e-5)
        assert panel.silhouette == pytest.approx(silhouette_score(expected, sample.y), abs=1e-4)
    assert not np.allclose(panels[0].features, panels[1].features, atol=1e-3)


def test_the_sample_is_stratified_and_follows_the_seed(runs: list[Trained]) -> None:
    sample = Sample.of(runs, images=20, seed=1)
    assert np.bincount(sample.y).tolist() == [5, 5, 5, 5]
    assert len(set(sample.rows.tolist())) == 20
    assert np.array_equal(sample.rows, Sample.of(runs[:1], images=20, seed=1).rows)
    assert not np.array_equal(sample.rows, Sample.of(runs, images=20, seed=2).rows)
    assert len(Sample.of(runs, images=1000).rows) == 40


def test_clients_own_images_are_seen_by_their_own_models(alone: Trained, tmp_path: Path) -> None:
    [panel] = tsne([alone], tmp_path / "out.png", clients=OWN)
    sample = Sample.of([alone], OWN)
    assert sample.clients == list(OWN)
    expected = []
    for client in OWN:
        rows = sample.rows[sample.owner == client]
        assert rows.tolist() == toys.partition().test[client].tolist()
        model = alone.personal(client)
        assert model is not None
        weights = {name: tensor for name, tensor in model.tree.items() if name.startswith("backbone.")}
        expected.append(backbone(alone, weights, rows))
    assert panel.features == pytest.approx(np.concatenate(expected), abs=1e-5)


def test_clients_share_the_images_out(alone: Trained) -> None:
    assert Sample.of([alone], (0, 1, 2), images=15).owner.tolist() == [0] * 5 + [1] * 5 + [2] * 5


def test_the_same_seed_gives_the_same_picture(runs: list[Trained], tmp_path: Path) -> None:
    for name, seed in (("one", 0), ("two", 0), ("three", 1)):
        tsne(runs[:1], tmp_path / f"{name}.png", images=20, seed=seed)
    one, two, three = ((tmp_path / f"{name}.png").read_bytes() for name in ("one", "two", "three"))
    assert one == two
    assert one != three


def test_neighbours_by_hand() -> None:
    two = np.repeat([[0.0], [100.0]], 12, axis=0) + np.arange(24)[:, None] / 100
    y = np.repeat([0, 1], 12)
    assert neighbours(two, y) == 1.0
    wrong = y.copy()
    wrong[4] = 1  # its neighbours are of class 0; to each of them it is one of ten
    assert neighbours(two, wrong) == pytest.approx(23 / 24)
    # 6 of each: the ten nearest are 5 of one's own and 5 others. A draw goes to class 0.
    assert neighbours(np.delete(two, range(3, 9), axis=0)[:12], np.repeat([0, 1], 6)) == 0.5


@pytest.mark.parametrize("y", [[1] * 12, list(range(12))])
def test_a_silhouette_needs_several_classes_of_several_images(y: list[int]) -> None:
    found = np.random.default_rng(0).normal(size=(12, 3))
    assert silhouette(found, np.array(y)) is None
    assert "silhouette" not in str(Panel("a", 1, found, found, None, 0.5))


@pytest.mark.parametrize("shape", [(10, 5), (40, 1)])
def test_few_images_and_few_features_have_a_map(shape: tuple[int, int]) -> None:
    found = places(np.random.default_rng(0).normal(size=shape).astype(np.float32), 0)
    assert found.shape == (shape[0], 2)
    assert np.isfinite(found).all()


def test_neighbours_stay_together_on_the_map() -> None:
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(4), 30)
    found = places((np.eye(4)[y] * 10 + rng.normal(size=(120, 4))).astype(np.float32), 0)
    assert neighbours(found, y) == 1.0


def test_a_map_is_turned_and_mirrored_onto_another() -> None:
    onto = np.random.default_rng(0).normal(size=(30, 2))
    angle = 2.0
    mirror = np.array([[np.cos(angle), np.sin(angle)], [np.sin(angle), -np.cos(angle)]])
    found = turned(onto @ mirror + [5, -3], onto)
    assert found == pytest.approx(onto - onto.mean(axis=0))


@pytest.mark.parametrize(
    ("panels", "classes", "clients", "size"),
    [(1, 2, 0, 900), (2, 10, 9, 1400), (4, 21, 2, 1400), (5, 100, 0, 1400)],
)
def test_pictures_of_any_size(panels: int, classes: int, clients: int, size: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    y = np.arange(200) % classes
    owner = np.sort(np.arange(200) % clients) if clients else None
    found = [
        Panel(f"method {i}, $x = 1", 10, np.zeros((200, 2)), rng.normal(size=(200, 2)), 0.1, 0.5) for i in range(panels)
    ]
    names = tuple(f"a long class name {label}" for label in range(classes))
    images = np.zeros((classes, 2, 2), np.uint8)
    data = dataset_from_arrays(images, np.arange(classes), images, np.arange(classes), classes=names)
    features.draw(found, Sample(np.arange(200), y, owner), data, tmp_path / "out.png")
    picture = imread(tmp_path / "out.png")
    assert picture.shape[1] == size
    assert 500 < picture.shape[0] < 1400
    assert np.mean(picture[..., :3].min(axis=2) < 0.99) > 0.03
    assert (picture[:, [0, -1], :3] == 1).all()  # nothing is cut at the sides


def other_images() -> Dataset:
    return dataset_from_arrays(*toys.images(160, 5), *toys.images(40, 6), name="other")


@pytest.mark.parametrize(
    ("values", "options", "word"),
    [
        ({}, {"images": 9}, "t-SNE of 9 test images: it takes at least 10"),
        ({}, {"clients": (4, 1)}, "t-SNE of 6 test images of clients 4, 1: it takes at least 10"),
        ({}, {"clients": (9,)}, "client 9: the run has clients 0 to 5"),
        ({}, {"labels": ("one",)}, "--labels: 1 labels for 2 runs"),
        ({"dataset": other_images}, {}, r"other images \(toy and other\)"),
        (
            {"partition": lambda: toys.partition(tests=(9, 5, 8, 7, 0, 8))},
            {"clients": (0, 1)},
            "client 0 has other",
        ),
    ],
)
def test_what_does_not_compare_is_refused(
    values: dict[str, object], options: dict[str, object], word: str, runs: list[Trained], tmp_path: Path
) -> None:
    other = trained(FedPer(), **{key: make() for key, make in values.items()})
    with pytest.raises(InputError, match=word) as refused:
        tsne([runs[0], other], tmp_path / "out.png", **options)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "out.png").exists()


def test_without_a_shared_backbone_there_is_no_panel(alone: Trained, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no whole backbone: look at clients' own \(--clients 0,1\)"):
        tsne([alone], tmp_path / "out.png")


def test_features_that_say_nothing_are_refused(runs: list[Trained], monkeypatch: pytest.MonkeyPatch) -> None:
    sample = Sample.of(runs)
    for value in (0.0, float("nan")):
        monkeypatch.setattr(features, "features_of", lambda run, sample, value=value: np.full((40, 3), value))
        with pytest.raises(InputError, match="not finite or the same for all images"):
            Panel.of("a", runs[0], sample, 0)


@pytest.mark.parametrize("name", ["out.jpg", "out", "folder.png"])
def test_only_a_png_is_written(name: str, runs: list[Trained], tmp_path: Path) -> None:
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(InputError, match="a picture is written as PNG"):
        tsne(runs, tmp_path / name)
