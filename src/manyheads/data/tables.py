"""Parquet files and Arrow tables laid out as on the Hugging Face hub, and the hub itself."""

import http.client
import json
import os
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from manyheads.data.dataset import Column, Dataset
from manyheads.data.formats import Pictures, dataset_from_pictures, short
from manyheads.errors import InputError

if TYPE_CHECKING:
    import pyarrow

IMAGE_COLUMNS = ("image", "img")
LABEL_COLUMNS = ("label", "fine_label", "labels", "character", "target")
PLAIN_TYPES = ("int", "uint", "float", "double", "bool", "string", "large_string")
CONNECT_SECONDS = 3.0


class HubError(InputError):
    """The hub, or the library to read it, is not there; other places may have the data set."""


def load_hub(repository: str, name: str) -> Dataset:
    """A data set from the Hugging Face hub, or from its cache when ``HF_HUB_OFFLINE`` is set.

    Args:
        repository: ``OWNER/NAME``.
        name: what to call it in reports.

    Raises:
        HubError: the datasets library is missing, the hub does not answer within 3 seconds, or it has no such data set.
        InputError: the data set has no train split, images or labels.
    """
    if find_spec("datasets") is None:
        raise HubError(f"{repository}: reading the Hugging Face hub needs: pip install 'manyheads[hub]'")
    if os.environ.get("HF_HUB_OFFLINE", "").upper() not in ("1", "ON", "YES", "TRUE"):
        _check_online(repository)
    import datasets

    try:
        splits = datasets.load_dataset(repository)
    except Exception as error:  # the library raises a dozen types of its own and of those below it
        raise HubError(f"{repository}: the Hugging Face hub has no such data set here ({short(error)})") from None
    if "train" not in splits:
        raise InputError(f"{repository}: no train split; it has {', '.join(splits)}")
    train, *test = (splits[split].with_format("arrow")[:] for split in ("train", "test") if split in splits)
    return from_tables(train, test[0] if test else None, name)


def _check_online(repository: str) -> None:
    """One short request, because the library itself tries for minutes."""
    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    request = urllib.request.Request(f"{endpoint}/api/datasets/{repository}", method="HEAD")
    try:
        urllib.request.urlopen(request, timeout=CONNECT_SECONDS).close()
    except urllib.error.HTTPError:
        return  # it answers: what is wrong is the library's to say
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)  # urllib wraps what happened
        raise HubError(f"{repository}: {endpoint} cannot be reached ({short(reason)})") from None


def read_parquet(path: Path) -> Dataset:
    """A data set from one Parquet file, or a folder of them as the Hugging Face hub lays them out.

    In a folder, files named ``test*`` are the test split, and those named ``valid*`` are left out.

    Raises:
        InputError: pyarrow is missing, or a file cannot be read or lacks images or labels.
    """
    if find_spec("pyarrow") is None:
        raise InputError(f"{path}: reading Parquet needs pyarrow: pip install 'manyheads[hub]'")
    files = sorted(path.rglob("*.parquet")) if path.is_dir() else [path]
    test = [file for file in files if file.name.startswith("test")]
    train = [file for file in files if not file.name.startswith(("test", "valid"))]
    if not train:  # then names mean nothing
        train, test = files, []
    return from_tables(_read_tables(train), _read_tables(test) if test else None, str(path))


def _read_tables(files: Sequence[Path]) -> "pyarrow.Table":
    import pyarrow
    from pyarrow import parquet

    tables = []
    try:
        for file in files:
            tables.append(parquet.read_table(file))
        return pyarrow.concat_tables(tables)
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise InputError(f"{file}: not a readable Parquet file, or unlike those before it ({short(error)})") from None


def from_tables(train: "pyarrow.Table", test: "pyarrow.Table | None", name: str) -> Dataset:
    """A data set from Arrow tables laid out as on the Hugging Face hub.

    The image column (``image`` or ``img``) holds encoded bytes, alone or as ``{bytes, path}``; the label column is
    ``label``, ``fine_label``, ``labels``, ``character`` or ``target``. Other plain columns are kept. Class names come
    from the schema's metadata, where there are any.

    Raises:
        InputError: a column is missing, or an image cannot be read or has another size.
    """
    splits = []
    for where, table in ((f"{name} (train)", train), (f"{name} (test)", test)):
        if table is not None:
            image, label = _column(table, IMAGE_COLUMNS, where), _column(table, LABEL_COLUMNS, where)
            others = _others(table, (image, label))
            splits.append(Pictures(_encoded(table[image], where), table[label].to_numpy(), others))
    return dataset_from_pictures(splits, name, _class_names(train))


def _column(table: "pyarrow.Table", names: Sequence[str], where: str) -> str:
    for name in names:
        if name in table.column_names:
            return name
    raise InputError(f"{where}: no column {' or '.join(names)}; it has {', '.join(table.column_names)}")


def _encoded(column: "pyarrow.ChunkedArray", where: str) -> Iterator[tuple[str, bytes]]:
    for i, value in enumerate(column):
        item = value.as_py()
        data = item.get("bytes") if isinstance(item, dict) else item
        if not isinstance(data, bytes):
            raise InputError(f"{where}: image {i} is not stored as encoded bytes, alone or in a field called bytes")
        yield f"{where}: image {i}", data


def _others(table: "pyarrow.Table", taken: Sequence[str]) -> dict[str, Column]:
    """Columns of numbers or text, without missing values."""
    columns: dict[str, Column] = {}
    for field in table.schema:
        kind = str(field.type)
        if field.name not in taken and kind.startswith(PLAIN_TYPES) and not table[field.name].null_count:
            values = table[field.name].to_numpy()
            columns[field.name] = values.astype(str) if "string" in kind else values
    return columns


def _class_names(table: "pyarrow.Table") -> list[str] | None:
    """The names that the datasets library stores in the schema's metadata."""
    label = _column(table, LABEL_COLUMNS, "")
    try:
        about: Any = json.loads((table.schema.metadata or {})[b"huggingface"])
        return [str(name) for name in about["info"]["features"][label]["names"]]
    except (KeyError, TypeError, ValueError):
        return None
