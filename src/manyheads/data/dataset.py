"""A data set in memory: checked uint8 images with labels, for training and for testing."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from manyheads.data.sampling import Ints, stratified, stream
from manyheads.errors import InputError

Images = NDArray[np.uint8]
Column = NDArray[Any]
TEST_SHARE = 5  # a data set without an official test split gives one image in five


@dataclass(frozen=True, eq=False)
class Split:
    """Images with their labels.

    Attributes:
        images: uint8, shape ``[n, h, w, c]``.
        labels: int64, shape ``[n]``.
        columns: further columns, such as the writer of each image, shape ``[n]``.

    Raises:
        InputError: a shape or type is wrong, or the lengths differ.
    """

    images: Images
    labels: Ints
    columns: Mapping[str, Column] = field(default_factory=dict)

    def __post_init__(self) -> None:
        images, labels = self.images, self.labels
        if images.dtype != np.uint8 or images.ndim != 4 or 0 in images.shape[1:]:
            raise InputError(f"images must be uint8 of shape [n, h, w, c], not {images.dtype} {list(images.shape)}")
        if labels.dtype != np.int64 or labels.ndim != 1:
            raise InputError(f"labels must be int64 of shape [n], not {labels.dtype} {list(labels.shape)}")
        for name, column in {"labels": labels, **self.columns}.items():
            if len(column) != len(images):
                raise InputError(f"{name}: {len(column)} values for {len(images)} images")

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, index: Ints) -> "Split":
        """The images at these positions, in this order."""
        columns = {name: column[index] for name, column in self.columns.items()}
        return Split(self.images[index], self.labels[index], columns)


@dataclass(frozen=True, eq=False)
class Dataset:
    """A train and a test split with the same classes and the same image size.

    Attributes:
        name: what to call it in reports.
        train: the split that clients and the auxiliary set come from.
        test: the official test split.
        classes: one name for each label value.
        mean: per channel, of the train split's pixels / 255; computed when left out.
        std: likewise; 1 for a channel that is constant.

    Raises:
        InputError: a label lies outside the classes, a split is empty, or the image sizes differ.
    """

    name: str
    train: Split
    test: Split
    classes: tuple[str, ...]
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if len(self.classes) < 2:
            raise InputError(f"{self.name}: {len(self.classes)} class; at least 2 are needed")
        for where, split in (("train", self.train), ("test", self.test)):
            if not len(split):
                raise InputError(f"{self.name}: no {where} images")
            check_labels(split.labels, len(self.classes), f"{self.name} ({where})")
        if self.train.images.shape[1:] != self.test.images.shape[1:]:
            sizes = [list(split.images.shape[1:]) for split in (self.train, self.test)]
            raise InputError(f"{self.name}: train images are {sizes[0]} (h, w, c), test images {sizes[1]}")
        if not self.mean or not self.std:
            channels = range(self.shape[0])
            mean, std = zip(*(_moments(self.train.images[..., channel]) for channel in channels), strict=True)
            object.__setattr__(self, "mean", self.mean or mean)
            object.__setattr__(self, "std", self.std or std)
        if not len(self.mean) == len(self.std) == self.shape[0] or min(self.std) <= 0:
            raise InputError(
                f"{self.name}: mean and std need a value, std above 0, for each of {self.shape[0]} channels"
            )

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of one image: channels, height, width."""
        height, width, channels = self.train.images.shape[1:]
        return channels, height, width

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 over everything that training and testing see: normalisation, images and labels of both splits."""
        digest = hashlib.sha256(repr((len(self.classes), self.mean, self.std)).encode())
        for split in (self.train, self.test):
            digest.update(repr(split.images.shape).encode())
            digest.update(split.images.tobytes())
            digest.update(split.labels.astype("<i8").tobytes())
        return digest.hexdigest()


def dataset_from_arrays(
    x_train: Images,
    y_train: NDArray[Any],
    x_test: Images | None = None,
    y_test: NDArray[Any] | None = None,
    *,
    name: str = "arrays",
    classes: Sequence[str] | None = None,
    columns: Mapping[str, Column] | None = None,
    test_columns: Mapping[str, Column] | None = None,
) -> Dataset:
    """A data set from arrays of one's own.

    Args:
        x_train: uint8 images, shape ``[n, h, w]`` or ``[n, h, w, c]``.
        y_train: whole numbers from 0, shape ``[n]``.
        x_test: test images; without them a stratified fifth of the train images is set apart, always the same one.
        y_test: their labels.
        name: what to call it in reports.
        classes: names of the classes; "0", "1", ... up to the largest label when left out.
        columns: further columns of the train images, such as the writer.
        test_columns: further columns of the test images.

    Raises:
        InputError: a shape or type is wrong, lengths differ, or a label lies outside the classes.
    """
    train = _split(x_train, y_train, columns, f"{name} (train)")
    if (x_test is None) != (y_test is None):
        raise InputError(f"{name}: x_test and y_test go together; one of them is missing")
    if x_test is not None and y_test is not None:
        test = _split(x_test, y_test, test_columns, f"{name} (test)")
    else:
        check_labels(train.labels, None, name)
        test_index = stratified(train.labels, len(train) // TEST_SHARE, stream("test split"))
        test, train = train.take(test_index), train.take(np.setdiff1d(np.arange(len(train)), test_index))
    if classes is None:
        largest = max((int(split.labels.max()) for split in (train, test) if len(split)), default=-1)
        if largest > len(train) + len(test):
            advice = "number the classes from 0, as np.unique(labels, return_inverse=True)[1] does"
            raise InputError(f"{name}: the label {largest} is above the number of images; {advice}")
        classes = [str(label) for label in range(largest + 1)]
    return Dataset(name, train, test, tuple(classes))


def limited(dataset: Dataset, limit: int | None) -> Dataset:
    """The data set with a stratified choice of ``limit`` train images, the same for all seeds; None keeps all.

    Raises:
        InputError: the limit is below 1.
    """
    if limit is None or limit >= len(dataset.train):
        return dataset
    if limit < 1:
        raise InputError(f"data.limit = {limit}: must be 1 or more; leave it out for all {len(dataset.train)} images")
    train = dataset.train.take(stratified(dataset.train.labels, limit, stream("limit")))
    return Dataset(dataset.name, train, dataset.test, dataset.classes)


def check_labels(labels: Ints, classes: int | None, where: str) -> None:
    """Raise InputError when a label is below 0 or, where the number of classes is known, not below it."""
    wrong = np.flatnonzero((labels < 0) | (labels >= (np.inf if classes is None else classes)))
    if len(wrong):
        span = "0 or more" if classes is None else f"in 0..{classes - 1}"
        raise InputError(f"{where}: label {labels[wrong[0]]} of image {wrong[0]} must be {span}")


def _split(images: Images, labels: NDArray[Any], columns: Mapping[str, Column] | None, where: str) -> Split:
    images, labels = np.asarray(images), np.asarray(labels)
    if images.ndim == 3:
        images = images[..., None]
    if not np.issubdtype(labels.dtype, np.integer):
        raise InputError(f"{where}: labels must be whole numbers, not {labels.dtype}, and none may be missing")
    try:
        return Split(images, labels.astype(np.int64), columns or {})
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def _moments(pixels: Images) -> tuple[float, float]:
    """Mean and std of one channel, from whole-number sums: the same bits on every machine."""
    n, total = pixels.size, int(pixels.sum(dtype=np.int64))
    squares = int(np.einsum("nhw,nhw->", pixels, pixels, dtype=np.int64))
    return total / (255 * n), math.sqrt((n * squares - total * total) / (255 * n) ** 2) or 1.0
