"""Files with images: IDX, CIFAR binary, .npz and image folders. Every complaint is one line that names the file.

Nothing here unpickles: arrays are read with ``allow_pickle=False``, and CIFAR in its binary version only.
"""

import gzip
import io
import struct
import zipfile
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from manyheads.data.dataset import Column, Dataset, Images, check_labels, dataset_from_arrays
from manyheads.data.sampling import Ints
from manyheads.errors import InputError

PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".pgm", ".ppm")


def read_idx(path: Path) -> NDArray[np.uint8]:
    """An IDX file of unsigned bytes, plain or gzipped, as an array of the shape that it declares.

    Raises:
        InputError: the file cannot be read, is not IDX, or holds fewer or more bytes than it declares.
    """
    data = read_bytes(path)
    if len(data) < 4 or data[:3] != b"\x00\x00\x08" or len(data) < 4 + 4 * data[3]:
        raise InputError(f"{path}: not an IDX file of unsigned bytes")
    shape = struct.unpack(f">{data[3]}I", data[4 : 4 + 4 * data[3]])
    body = np.frombuffer(data, np.uint8, offset=4 + 4 * data[3])
    if len(body) != np.prod(shape, dtype=object):
        state = "truncated" if len(body) < np.prod(shape, dtype=object) else "too long"
        raise InputError(f"{path}: {state}: {len(body)} bytes for an array of shape {list(shape)}")
    return body.reshape(shape)


def read_idx_pair(images: Path, labels: Path, classes: int | None = None) -> tuple[Images, Ints]:
    """Images ``[n, h, w]`` and labels ``[n]`` from two IDX files.

    Raises:
        InputError: a file is damaged, their lengths differ, or a label is not below ``classes``.
    """
    x, y = read_idx(images), read_idx(labels).astype(np.int64)
    if x.ndim != 3:
        raise InputError(f"{images}: {x.ndim} dimensions, but images have 3 (number, height, width)")
    if y.ndim != 1 or len(y) != len(x):
        raise InputError(f"{labels}: {len(y)} labels for the {len(x)} images in {images.name}")
    check_labels(y, classes, str(labels))
    return x, y


def read_cifar(paths: Sequence[Path], classes: int, coarse: bool = False) -> tuple[Images, Ints, dict[str, Column]]:
    """Images ``[n, 32, 32, 3]``, labels and further columns from CIFAR binary files.

    Args:
        paths: read one after the other.
        classes: 10 or 100.
        coarse: whether every record starts with a coarse label, as in CIFAR-100.

    Raises:
        InputError: a file cannot be read, is cut off inside a record, or has a label outside the classes.
    """
    first = 1 if coarse else 0
    records = []
    for path in paths:
        data = np.frombuffer(read_bytes(path), np.uint8)
        width = first + 1 + 3 * 32 * 32
        if not len(data) or len(data) % width:
            raise InputError(f"{path}: truncated: {len(data)} bytes are not whole records of {width} bytes")
        records.append(data.reshape(-1, width))
        check_labels(records[-1][:, first].astype(np.int64), classes, str(path))
    table = np.concatenate(records)
    images = np.ascontiguousarray(table[:, first + 1 :].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
    columns = {"coarse_label": table[:, 0].astype(np.int64)} if coarse else {}
    return images, table[:, first].astype(np.int64), columns


def read_npz(path: Path) -> Dataset:
    """A data set from ``x_train``, ``y_train`` and, if there, ``x_test`` and ``y_test``.

    Images are uint8 ``[n, h, w]`` or ``[n, h, w, c]``. Any other ``NAME_train`` is a further column of the train split.

    Raises:
        InputError: the file cannot be read, lacks an array, or holds arrays that do not fit together.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, AttributeError, zipfile.BadZipFile, zlib.error) as error:
        raise InputError(f"{path}: not a readable .npz file without pickled objects ({short(error)})") from None
    for name in ("x_train", "y_train", *(("x_test", "y_test") if {"x_test", "y_test"} & set(arrays) else ())):
        if name not in arrays:
            raise InputError(f"{path}: no array {name}; it has {', '.join(sorted(arrays)) or 'none'}")
    columns = {name[:-6]: array for name, array in arrays.items() if name.endswith("_train") and name[:-6] not in "xy"}
    x_test, y_test = arrays.get("x_test"), arrays.get("y_test")
    return dataset_from_arrays(arrays["x_train"], arrays["y_train"], x_test, y_test, name=str(path), columns=columns)


def read_image_folder(path: Path) -> Dataset:
    """A data set from ``train/CLASS/*.png`` and, if there, ``test/CLASS/*.png``; or from ``CLASS/*.png`` alone.

    Class names are the folder names in alphabetical order. Gray images stay gray unless some have colours.

    Raises:
        InputError: no images, a file that is no 8-bit image, unequal image sizes, or a test class without train images.
    """
    train = path / "train" if (path / "train").is_dir() else path
    classes = sorted(folder.name for folder in train.iterdir() if folder.is_dir() and not folder.name.startswith("."))
    if not classes:
        raise InputError(f"{train}: no images; expected one folder for each class, such as {train}/cat/1.png")
    splits = [_folder_files(train, classes)]
    if train != path and (path / "test").is_dir():
        splits.append(_folder_files(path / "test", classes))
    pixels = decode((file, file.read_bytes()) for files, _ in splits for file in files)
    n = len(splits[0][0])
    x_test, y_test = (pixels[n:], splits[1][1]) if len(splits) == 2 else (None, None)
    return dataset_from_arrays(pixels[:n], splits[0][1], x_test, y_test, name=str(path), classes=classes)


def decode(files: Iterable[tuple[Path | str, bytes]]) -> Images:
    """Encoded pictures as one uint8 array ``[n, h, w, c]``, c = 1 when all of them are gray and 3 otherwise.

    Raises:
        InputError: a picture cannot be read, has more than 8 bits a channel, or has another size than the first.
    """
    from PIL import Image

    arrays: list[Images] = []
    for name, data in files:
        try:
            with Image.open(io.BytesIO(data)) as picture:
                mode = picture.mode
                array = np.asarray(picture.convert("L" if mode in ("1", "L") else "RGB"))
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            raise InputError(f"{name}: not a readable image ({short(error)})") from None
        if mode.startswith(("I", "F")):
            raise InputError(f"{name}: pixels of mode {mode}; images must have 8 bits a channel")
        if arrays and array.shape[:2] != arrays[0].shape[:2]:
            sizes = [f"{w} x {h}" for h, w in (array.shape[:2], arrays[0].shape[:2])]
            raise InputError(f"{name}: {sizes[0]} pixels, but the first image has {sizes[1]}; resize them to one size")
        arrays.append(array)
    if not arrays:
        raise InputError("no images in the train split")
    if any(array.ndim == 3 for array in arrays):
        return np.stack([a if a.ndim == 3 else np.repeat(a[..., None], 3, axis=2) for a in arrays])
    return np.stack(arrays)[..., None]


def read_bytes(path: Path) -> bytes:
    """The content of a file, unpacked when its name ends in .gz. Raises InputError when it cannot be read."""
    try:
        return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        state = "truncated" if isinstance(error, EOFError) else "cannot be read"
        raise InputError(f"{path}: {state} ({short(error)})") from None


def _folder_files(split: Path, classes: Sequence[str]) -> tuple[list[Path], Ints]:
    files: list[Path] = []
    labels: list[int] = []
    for folder in sorted(folder for folder in split.iterdir() if folder.is_dir() and not folder.name.startswith(".")):
        if folder.name not in classes:
            raise InputError(f"{folder}: class {folder.name!r} has no train images; train has {', '.join(classes)}")
        found = sorted(file for file in folder.rglob("*") if file.suffix.lower() in PICTURES)
        if not found:
            raise InputError(f"{folder}: no images in this class folder ({', '.join(PICTURES)})")
        files += found
        labels += [classes.index(folder.name)] * len(found)
    return files, np.array(labels, np.int64)


def short(error: object) -> str:
    """The first line of an error, or its type when it says nothing."""
    return next(iter(str(error).splitlines()), "") or type(error).__name__
