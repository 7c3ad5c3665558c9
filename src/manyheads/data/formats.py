"""Files with images: IDX, CIFAR binary, .npz and image folders.

Whatever is wrong with a file raises ``InputError``: one line that names it. Nothing here unpickles: arrays are read
with ``allow_pickle=False``, and CIFAR in its binary version only.
"""

import gzip
import io
import math
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from manyheads.data.dataset import Column, Dataset, Images, check_labels, dataset_from_arrays
from manyheads.data.sampling import Ints
from manyheads.errors import InputError

PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".pgm", ".ppm")


def read_idx(path: Path) -> NDArray[np.uint8]:
    """An IDX file of unsigned bytes, plain or gzipped, as an array of the shape that it declares."""
    data = read_bytes(path)
    if len(data) < 4 or data[:3] != b"\x00\x00\x08" or len(data) < 4 + 4 * data[3]:
        raise InputError(f"{path}: not an IDX file of unsigned bytes")
    shape = struct.unpack_from(f">{data[3]}I", data, offset=4)
    body = np.frombuffer(data, np.uint8, offset=4 + 4 * data[3])
    if len(body) != math.prod(shape):
        state = "truncated" if len(body) < math.prod(shape) else "too long"
        raise InputError(f"{path}: {state}: {len(body)} bytes for an array of shape {list(shape)}")
    return body.reshape(shape)


def read_idx_pair(images: Path, labels: Path, classes: int | None = None) -> tuple[Images, Ints]:
    """Images ``[n, h, w]`` and labels ``[n]``, below ``classes`` where that is known, from two IDX files."""
    x, y = read_idx(images), read_idx(labels).astype(np.int64)
    if x.ndim != 3:
        raise InputError(f"{images}: {x.ndim} dimensions, but images have 3 (number, height, width)")
    if y.ndim != 1 or len(y) != len(x):
        raise InputError(f"{labels}: {len(y)} labels for the {len(x)} images in {images.name}")
    check_labels(y, classes, str(labels))
    return x, y


def read_cifar(paths: Sequence[Path], classes: int, coarse: bool = False) -> tuple[Images, Ints, dict[str, Column]]:
    """Images ``[n, 32, 32, 3]``, labels and further columns from CIFAR binary files, one after the other.

    Every record starts with its label, below ``classes``, and before that, if ``coarse``, a coarse one (CIFAR-100).
    """
    records, width = [], coarse + 1 + 3 * 32 * 32
    for path in paths:
        data = np.frombuffer(read_bytes(path), np.uint8)
        if not len(data) or len(data) % width:
            raise InputError(f"{path}: truncated: {len(data)} bytes are not whole records of {width} bytes")
        records.append(data.reshape(-1, width))
        check_labels(records[-1][:, int(coarse)].astype(np.int64), classes, str(path))
    table = np.concatenate(records)
    images = np.ascontiguousarray(table[:, coarse + 1 :].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
    columns = {"coarse_label": table[:, 0].astype(np.int64)} if coarse else {}
    return images, table[:, int(coarse)].astype(np.int64), columns


def read_npz(path: Path) -> Dataset:
    """A data set from ``x_train``, ``y_train`` and, if there, ``x_test`` and ``y_test``.

    Images are uint8 ``[n, h, w]`` or ``[n, h, w, c]``. Any other ``NAME_train`` is a further column of the train split.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except Exception as error:  # numpy, zipfile and zlib raise half a dozen types
        raise InputError(f"{path}: not a readable .npz file without pickled objects ({short(error)})") from None
    test = ["x_test", "y_test"] if {"x_test", "y_test"} & set(arrays) else []
    for name in ("x_train", "y_train", *test):
        if name not in arrays:
            raise InputError(
                f"{path}: no array {name} (needed: x_train, y_train); it has {', '.join(sorted(arrays)) or 'none'}"
            )
    columns = {name[:-6]: array for name, array in arrays.items() if name.endswith("_train") and name[:-6] not in "xy"}
    x_test, y_test = arrays.get("x_test"), arrays.get("y_test")
    return dataset_from_arrays(arrays["x_train"], arrays["y_train"], x_test, y_test, name=str(path), columns=columns)


def read_image_folder(path: Path) -> Dataset:
    """A data set from ``train/CLASS/*.png`` and, if there, ``test/CLASS/*.png``; or from ``CLASS/*.png`` alone.

    Class names are the folder names in alphabetical order. Gray images stay gray unless some have colours.
    """
    roots = [path / "train", path / "test"] if (path / "train").is_dir() else [path]
    classes = [folder.name for folder in _class_folders(roots[0])]
    if not classes:
        raise InputError(f"{roots[0]}: no images; expected one folder for each class, such as {roots[0]}/cat/1.png")
    return dataset_from_pictures([_pictures(root, classes) for root in roots if root.is_dir()], str(path), classes)


class Pictures(NamedTuple):
    """Encoded images of a split, each with its name for messages; their labels; further columns."""

    images: Iterable[tuple[Path | str, bytes]]
    labels: NDArray[Any]
    columns: Mapping[str, Column]


def dataset_from_pictures(splits: Sequence[Pictures], name: str, classes: Sequence[str] | None) -> Dataset:
    """A data set from the train and, if there, the test split; its images are gray when those of both are."""
    pixels = _decode(chain.from_iterable(split.images for split in splits))
    train, test = splits[0], splits[-1]
    n = len(train.labels)
    return dataset_from_arrays(
        pixels[:n],
        train.labels,
        *((pixels[n:], test.labels) if len(splits) == 2 else ()),
        name=name,
        classes=classes,
        columns=train.columns,
        test_columns=test.columns,
    )


def _decode(files: Iterable[tuple[Path | str, bytes]]) -> Images:
    """Encoded images of one size as an array ``[n, h, w, c]``, c = 1 when all of them are gray and 3 otherwise."""
    from PIL import Image

    arrays: list[Images] = []
    for name, data in files:
        try:
            with Image.open(io.BytesIO(data)) as picture:
                mode = picture.mode
                array = np.atleast_3d(np.asarray(picture.convert("L" if mode in ("1", "L") else "RGB")))
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            raise InputError(f"{name}: not a readable image ({short(error)})") from None
        if mode.startswith(("I", "F")):
            raise InputError(f"{name}: pixels of mode {mode}; images must have 8 bits a channel")
        if arrays and array.shape[:2] != arrays[0].shape[:2]:
            sizes = [f"{w} x {h}" for h, w, _ in (array.shape, arrays[0].shape)]
            raise InputError(f"{name}: {sizes[0]} pixels, but the first image has {sizes[1]}; resize them to one size")
        arrays.append(array)
    if not arrays:
        raise InputError("no images in the train split")
    channels = max(array.shape[2] for array in arrays)
    return np.stack([np.broadcast_to(array, (*array.shape[:2], channels)) for array in arrays])


def _class_folders(split: Path) -> list[Path]:
    return sorted(folder for folder in split.iterdir() if folder.is_dir() and not folder.name.startswith("."))


def _pictures(split: Path, classes: Sequence[str]) -> Pictures:
    files, labels = [], []
    for folder in _class_folders(split):
        if folder.name not in classes:
            raise InputError(f"{folder}: class {folder.name!r} has no train images; train has {', '.join(classes)}")
        found = sorted(file for file in folder.rglob("*") if file.suffix.lower() in PICTURES)
        if not found:
            raise InputError(f"{folder}: no images in this class folder ({', '.join(PICTURES)})")
        files += found
        labels += [classes.index(folder.name)] * len(found)
    return Pictures(((file, file.read_bytes()) for file in files), np.array(labels, np.int64), {})


def read_bytes(path: Path) -> bytes:
    """The content of a file, unpacked when its name ends in .gz."""
    try:
        return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        state = "truncated" if isinstance(error, EOFError) else "cannot be read"
        raise InputError(f"{path}: {state} ({short(error)})") from None


def short(error: object) -> str:
    """The first line of an error, or its type when it says nothing."""
    return next(iter(str(error).splitlines()), "") or type(error).__name__
