from typing import Any

import numpy as np
import pytest

from manyheads.data.dataset import Dataset, Split, dataset_from_arrays, limited
from manyheads.errors import InputError

RNG = np.random.default_rng(0)
X = RNG.integers(0, 256, (50, 4, 3, 2), dtype=np.uint8)
Y = np.arange(50) % 5


def test_mean_and_std_are_those_of_the_train_pixels() -> None:
    data = dataset_from_arrays(X, Y, X[:5], Y[:5])
    assert data.mean == pytest.approx((X / 255).mean(axis=(0, 1, 2)), abs=1e-12)
    assert data.std == pytest.approx((X / 255).std(axis=(0, 1, 2)), abs=1e-12)
    assert data.shape == (2, 4, 3)
    black = dataset_from_arrays(np.zeros_like(X), Y, X[:5], Y[:5])
    assert (black.mean, black.std) == ((0.0, 0.0), (1.0, 1.0))


def test_without_test_images_a_fixed_stratified_fifth_is_set_apart() -> None:
    writer = np.arange(50)
    data = dataset_from_arrays(X, Y, columns={"writer": writer})
    assert np.bincount(data.test.labels).tolist() == [2] * 5
    assert np.array_equal(np.sort(np.concatenate([data.train.columns["writer"], data.test.columns["writer"]])), writer)
    assert np.array_equal(data.test.images, X[data.test.columns["writer"]])
    assert dataset_from_arrays(X, Y).fingerprint == data.fingerprint


def test_fingerprint_sees_every_pixel_and_label() -> None:
    first = dataset_from_arrays(X, Y, X[:5], Y[:5]).fingerprint
    other, labels = X.copy(), Y.copy()
    other[7, 0, 0, 0] ^= 1
    labels[7] = 3
    assert dataset_from_arrays(X.copy(), Y, X[:5], Y[:5]).fingerprint == first
    changed = [dataset_from_arrays(other, Y, X[:5], Y[:5]), dataset_from_arrays(X, labels, X[:5], Y[:5])]
    assert len({first, *(data.fingerprint for data in changed)}) == 3


def test_limit_is_stratified_and_leaves_the_test_split() -> None:
    data = dataset_from_arrays(X, Y, X[:5], Y[:5])
    few = limited(data, 20)
    assert np.bincount(few.train.labels).tolist() == [4] * 5
    assert len(few.test) == 5
    assert limited(data, 1000) is data
    with pytest.raises(InputError, match=r"data\.limit = 0"):
        limited(data, 0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((X.astype(float), Y), "images must be uint8"),
        ((X[:, 0, 0], Y), r"shape \[n, h, w, c\], not uint8 \[50, 2\]"),
        ((X, Y.astype(float)), "labels must be whole numbers, not float64"),
        ((X, Y[:-1]), "arrays .train.: labels: 49 values for 50 images"),
        ((X, Y - 1), "label -1 of image 0 must be 0 or more"),
        ((X, Y, X, Y + 1), r"arrays \(test\): label 5 of image 4 must be in 0..4"),
        ((X, Y, X[:, :2], Y), r"train images are \[4, 3, 2\].*test images \[2, 3, 2\]"),
        ((X, Y, X[:0], Y[:0]), "no test images"),
        ((X, Y * 0), "1 class"),
    ],
)
def test_wrong_arrays_are_refused_in_one_line(arguments: tuple[Any, ...], message: str) -> None:
    classes = ["a", "b", "c", "d", "e"] if len(arguments) == 4 else None
    with pytest.raises(InputError, match=message) as caught:
        dataset_from_arrays(*arguments, classes=classes)
    assert "\n" not in str(caught.value)


def test_columns_and_moments_must_fit() -> None:
    with pytest.raises(InputError, match="writer: 3 values for 50 images"):
        Split(X, Y, {"writer": np.zeros(3)})
    split = Split(X, Y)
    with pytest.raises(InputError, match="for each of 2 channels"):
        Dataset("x", split, split, tuple("abcde"), mean=(0.5,), std=(0.5,))


def test_test_images_and_test_labels_go_together() -> None:
    with pytest.raises(InputError, match="x_test and y_test go together"):
        dataset_from_arrays(X, Y, X)


def test_labels_that_are_identifiers_are_refused() -> None:
    with pytest.raises(InputError, match="the label 20240000 is above the number of images; number the classes from 0"):
        dataset_from_arrays(X, np.where(Y == 0, 20240000, Y))


def test_the_fingerprint_tells_normalisations_apart() -> None:
    first = dataset_from_arrays(X, Y)
    channels = X.shape[-1] if X.ndim == 4 else 1
    other = Dataset(first.name, first.train, first.test, first.classes, mean=(0.0,) * channels, std=(1.0,) * channels)
    assert other.fingerprint != first.fingerprint
