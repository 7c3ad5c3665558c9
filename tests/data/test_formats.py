import gzip
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from manyheads.data.formats import read_cifar, read_idx, read_idx_pair, read_image_folder, read_npz
from manyheads.errors import InputError

RNG = np.random.default_rng(0)
GRAY = RNG.integers(0, 256, (6, 5, 4), dtype=np.uint8)
LABELS = np.array([0, 1, 2, 0, 1, 2], np.uint8)


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_idx_is_read_plain_and_packed(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    path = tmp_path / ("x.gz" if pack is gzip.compress else "x")
    path.write_bytes(pack(idx(GRAY)))
    assert np.array_equal(read_idx(path), GRAY)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a", idx(GRAY)[:-1], r"truncated: 119 bytes for an array of shape \[6, 5, 4\]"),
        ("b", idx(GRAY) + b"x", "too long"),
        ("c", b"\x00\x00\x08\x03\x00", "not an IDX file"),
        ("d", b"PNG and more", "not an IDX file"),
        ("e", b"", "not an IDX file"),
        ("f.gz", gzip.compress(idx(GRAY))[:-20], "truncated|cannot be read"),
        ("g.gz", idx(GRAY), "cannot be read"),
        ("h", struct.pack(">HBB3I", 0, 8, 3, 2**32 - 1, 2**32 - 1, 2**32 - 1), "truncated"),
    ],
)
def test_a_damaged_idx_file_is_named(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        read_idx(tmp_path / name)
    assert str(caught.value).startswith(str(tmp_path / name))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (GRAY, LABELS[:-1], "y: 5 labels for the 6 images in x"),
        (GRAY, LABELS + 1, "y: label 3 of image 2 must be in 0..2"),
        (GRAY[0], LABELS, "x: 2 dimensions"),
    ],
)
def test_idx_files_that_do_not_fit_together(
    tmp_path: Path, images: np.ndarray, labels: np.ndarray, message: str
) -> None:
    (tmp_path / "x").write_bytes(idx(images))
    (tmp_path / "y").write_bytes(idx(labels))
    with pytest.raises(InputError, match=message):
        read_idx_pair(tmp_path / "x", tmp_path / "y", classes=3)


def test_cifar_records_become_channels_last(tmp_path: Path) -> None:
    planes = RNG.integers(0, 256, (3, 3, 32, 32), dtype=np.uint8)
    body = b"".join(bytes([7, i]) + plane.tobytes() for i, plane in enumerate(planes))
    (tmp_path / "train.bin").write_bytes(body)
    images, labels, columns = read_cifar([tmp_path / "train.bin"], 100, coarse=True)
    assert np.array_equal(images, planes.transpose(0, 2, 3, 1))
    assert labels.tolist() == [0, 1, 2]
    assert columns["coarse_label"].tolist() == [7, 7, 7]
    with pytest.raises(InputError, match=r"train\.bin: truncated"):
        read_cifar([tmp_path / "train.bin"], 10)
    with pytest.raises(InputError, match=r"train\.bin: label 2 of image 2 must be in 0..1"):
        read_cifar([tmp_path / "train.bin"], 2, coarse=True)
    with pytest.raises(InputError, match=r"missing\.bin: cannot be read"):
        read_cifar([tmp_path / "missing.bin"], 10)


def test_npz_is_read_with_its_columns(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", x_train=GRAY, y_train=LABELS, x_test=GRAY, y_test=LABELS, writer_train=LABELS)
    data = read_npz(tmp_path / "d.npz")
    assert np.array_equal(data.train.images[..., 0], GRAY)
    assert list(data.train.columns) == ["writer"]
    assert data.classes == ("0", "1", "2")


def test_npz_that_is_damaged_pickled_or_incomplete_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "d.npz"
    np.savez(path, x_train=GRAY, y_train=np.array([{}] * 6, dtype=object))
    with pytest.raises(InputError, match="without pickled objects"):
        read_npz(path)
    np.savez(path, x_train=GRAY)
    with pytest.raises(InputError, match=r"no array y_train \(needed: x_train, y_train\); it has x_train"):
        read_npz(path)
    np.savez(path, x_train=GRAY, y_train=LABELS, x_test=GRAY)
    with pytest.raises(InputError, match="no array y_test"):
        read_npz(path)
    content = path.read_bytes()
    for damaged in (content[:-30], b"", b"text"):
        path.write_bytes(damaged)
        with pytest.raises(InputError, match=r"d\.npz: not a readable \.npz file"):
            read_npz(path)


def draw(path: Path, mode: str = "L", size: tuple[int, int] = (4, 5)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size).save(path)


def folder(tmp_path: Path) -> Path:
    for name in ("train/cat/1.png", "train/cat/2.png", "train/dog/1.png", "train/dog/2.png", "test/dog/1.png"):
        draw(tmp_path / name)
    return tmp_path


def test_image_folder_has_its_class_names(tmp_path: Path) -> None:
    data = read_image_folder(folder(tmp_path))
    assert data.classes == ("cat", "dog")
    assert data.shape == (1, 5, 4)
    assert data.train.labels.tolist() == [0, 0, 1, 1]
    assert data.test.labels.tolist() == [1]


def test_image_folder_pixels_are_exact_and_gray_joins_colour(tmp_path: Path) -> None:
    folder(tmp_path)
    Image.fromarray(GRAY[0]).save(tmp_path / "train/cat/1.png")
    draw(tmp_path / "train/dog/2.png", "RGBA")
    data = read_image_folder(tmp_path)
    assert data.shape == (3, 5, 4)
    assert np.array_equal(data.train.images[0], np.repeat(GRAY[0][..., None], 3, axis=2))


def test_image_folder_without_splits_gives_a_fifth_for_testing(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        for i in range(5):
            draw(tmp_path / name / f"{i}.png")
    data = read_image_folder(tmp_path)
    assert (np.bincount(data.train.labels).tolist(), data.test.labels.tolist()) == ([4, 4], [0, 1])


def test_bad_image_folders_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no images; expected one folder for each class"):
        read_image_folder(tmp_path)
    folder(tmp_path)
    draw(tmp_path / "train/dog/3.png", size=(7, 5))
    with pytest.raises(InputError, match=r"3\.png: 7 x 5 pixels, but the first image has 4 x 5"):
        read_image_folder(tmp_path)
    (tmp_path / "train/dog/3.png").write_bytes(b"no image")
    with pytest.raises(InputError, match=r"3\.png: not a readable image"):
        read_image_folder(tmp_path)
    draw(tmp_path / "train/dog/3.png", "I;16")
    with pytest.raises(InputError, match=r"3\.png: pixels of mode I;16"):
        read_image_folder(tmp_path)
    draw(tmp_path / "train/dog/3.png")
    draw(tmp_path / "test/bird/1.png")
    with pytest.raises(InputError, match="class 'bird' has no train images; train has cat, dog"):
        read_image_folder(tmp_path)
    (tmp_path / "test/bird").rename(tmp_path / "train/bird")
    (tmp_path / "train/bird/1.png").unlink()
    with pytest.raises(InputError, match="bird: no images in this class folder"):
        read_image_folder(tmp_path)
