"""Parquet files and Arrow tables laid out as on the Hugging Face hub, and the hub itself."""

import http.client
import json
import os
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from manyheads.data.dataset import Column, Dataset, dataset_from_arrays
from manyheads.data.formats import decode, short
from manyheads.data.sampling import Ints
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
    _check_online(repository)
    import datasets

    try:
        splits = datasets.load_dataset(repository)
    except Exception as error:  # the library raises a dozen types of its own and of those below it
        raise HubError(f"{repository}: the Hugging Face hub has no such data set here ({short(error)})") from None
    if "train" not in splits:
        raise InputError(f"{repository}: no train split; it has {', '.join(splits)}")
    tables = [splits[split].with_format("arrow")[:] for split in ("train", "test") if split in splits]
    return from_tables(tables[0], tables[1] if len(tables) == 2 else None, name)


def _check_online(repository: str) -> None:
    """One short request, because the library itself tries for minutes."""
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        return
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
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise InputError(f"{path}: reading Parquet needs pyarrow: pip install 'manyheads[hub]'") from None
    files = sorted(path.rglob("*.parquet")) if path.is_dir() else [path]
    tables: dict[bool, list[pyarrow.Table]] = {False: [], True: []}
    for file in files:
        if not file.name.startswith("valid") or len(files) == 1:
            try:
                tables[file.name.startswith("test") and len(files) > 1].append(parquet.read_table(file))
            except (pyarrow.ArrowException, OSError) as error:
                raise InputError(f"{file}: not a readable Parquet file ({short(error)})") from None
    try:
        train, *test = (pyarrow.concat_tables(part) for part in tables.values() if part)
    except (pyarrow.ArrowException, ValueError) as error:
        raise InputError(f"{path}: its Parquet files do not fit together ({short(error)})") from None
    return from_tables(train, test[0] if test else None, str(path))


def from_tables(train: "pyarrow.Table", test: "pyarrow.Table | None", name: str) -> Dataset:
    """A data set from Arrow tables laid out as on the Hugging Face hub.

    The image column (``image`` or ``img``) holds encoded bytes, alone or as ``{bytes, path}``; the label column is
    ``label``, ``fine_label``, ``labels``, ``character`` or ``target``. Other plain columns are kept. Class names come
    from the schema's metadata, where there are any.

    Raises:
        InputError: a column is missing, or an image cannot be read or has another size.
    """
    image, label = _column(train, IMAGE_COLUMNS, name), _column(train, LABEL_COLUMNS, name)
    tables = {f"{name} (train)": train} | ({f"{name} (test)": test} if test is not None else {})
    pictures, labels, columns = [], [], []
    for where, table in tables.items():
        pictures.append(_encoded(table[_column(table, [image], where)], where))
        labels.append(_integers(table[_column(table, [label], where)], f"{where}: column {label}"))
        columns.append(_others(table, (image, label)))
    pixels = decode(chain.from_iterable(pictures))
    n = len(train)
    return dataset_from_arrays(
        pixels[:n],
        labels[0],
        pixels[n:] if test is not None else None,
        labels[-1] if test is not None else None,
        name=name,
        classes=_class_names(train, label),
        columns=columns[0],
        test_columns=columns[-1],
    )


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


def _integers(column: "pyarrow.ChunkedArray", where: str) -> Ints:
    if not str(column.type).lstrip("u").startswith("int") or column.null_count:
        raise InputError(f"{where}: labels must be whole numbers, none missing, not {column.type}")
    labels: Ints = column.to_numpy().astype("int64")
    return labels


def _others(table: "pyarrow.Table", taken: Sequence[str]) -> dict[str, Column]:
    """Columns of numbers or text, without missing values."""
    columns: dict[str, Column] = {}
    for field in table.schema:
        kind = str(field.type)
        if field.name not in taken and kind.startswith(PLAIN_TYPES) and not table[field.name].null_count:
            values = table[field.name].to_numpy()
            columns[field.name] = values.astype(str) if "string" in kind else values
    return columns


def _class_names(table: "pyarrow.Table", label: str) -> list[str] | None:
    """The names that the datasets library stores in the schema's metadata."""
    try:
        about: Any = json.loads((table.schema.metadata or {})[b"huggingface"])
        return [str(name) for name in about["info"]["features"][label]["names"]]
    except (KeyError, TypeError, ValueError):
        return None
