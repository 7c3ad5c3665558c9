import io
import json
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet

from manyheads.data import tables
from manyheads.data.sources import load
from manyheads.data.tables import HubError, from_tables, load_hub, read_parquet
from manyheads.errors import InputError

PIXELS = np.random.default_rng(0).integers(0, 256, (10, 5, 4, 3), dtype=np.uint8)
LABELS = [0, 1] * 5


def png(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "png")
    return file.getvalue()


def table(image: str = "img", label: str = "label", names: list[str] | None = None, **columns: Any) -> pa.Table:
    pictures = [{"bytes": png(pixels), "path": None} for pixels in PIXELS]
    made = pa.table({image: pictures, label: LABELS, **columns})
    if names:
        features = {label: {"names": names, "_type": "ClassLabel"}}
        made = made.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    return made


def test_a_folder_laid_out_as_on_the_hub(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    made = table(names=["cat", "dog"], writer_id=list("aabbccddee"), note=[None] * 10)
    parquet.write_table(made.slice(0, 6), tmp_path / "data/train-00000-of-00002.parquet")
    parquet.write_table(made.slice(6, 2), tmp_path / "data/train-00001-of-00002.parquet")
    parquet.write_table(made.slice(8), tmp_path / "data/test-00000-of-00001.parquet")
    parquet.write_table(made, tmp_path / "data/validation-00000-of-00001.parquet")
    data = load(str(tmp_path))
    assert data.classes == ("cat", "dog")
    assert np.array_equal(data.train.images, PIXELS[:8])
    assert np.array_equal(data.test.images, PIXELS[8:])
    assert data.train.columns["writer_id"].tolist() == list("aabbccdd")
    assert list(data.test.columns) == ["writer_id"]


def test_one_file_gives_a_fifth_for_testing(tmp_path: Path) -> None:
    path = tmp_path / "test.parquet"
    parquet.write_table(table("image", "fine_label", coarse_label=LABELS), path)
    data = load(str(path))
    assert (len(data.train), len(data.test)) == (8, 2)
    assert list(data.train.columns) == ["coarse_label"]


def test_bare_bytes_are_images_too() -> None:
    made = pa.table({"image": [png(pixels) for pixels in PIXELS], "label": LABELS})
    assert np.array_equal(from_tables(made, made, "x").train.images, PIXELS)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (table(image="picture"), "no column image or img; it has picture, label"),
        (table(label="y"), "no column label or"),
        (pa.table({"img": [{"bytes": None, "path": "1.png"}], "label": [0]}), "image 0 is not stored as encoded bytes"),
        (pa.table({"img": [b"text"], "label": [0]}), "image 0: not a readable image"),
        (
            table().set_column(1, "label", pa.array(["a"] * 10)),
            "must be whole numbers, not object",
        ),
        (table().set_column(1, "label", pa.array([None] + [0] * 9)), "none may be missing"),
        (table(names=["only"]), "1 class"),
    ],
)
def test_tables_that_do_not_fit_are_refused(made: pa.Table, message: str) -> None:
    with pytest.raises(InputError, match=message):
        from_tables(made, None, "x")


def test_damaged_parquet_is_named(tmp_path: Path) -> None:
    path = tmp_path / "d.parquet"
    parquet.write_table(table(), path)
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(InputError, match=r"d\.parquet: not a readable Parquet file"):
        read_parquet(path)


def test_the_hub_is_read_through_its_library(monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    asked = []
    made = table(names=["cat", "dog"])

    def load_dataset(repository: str) -> Any:
        asked.append(repository)
        image = datasets.Image(decode=True)
        split = datasets.Dataset(made).cast_column("img", image)
        return {"train": split, "test": split}

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    data = load("cifar10")
    assert asked == ["uoft-cs/cifar10"]
    assert np.array_equal(data.train.images, PIXELS)
    assert data.classes == ("cat", "dog")


def test_a_hub_that_cannot_be_reached_is_said_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # nothing listens on the discard port
    monkeypatch.setattr(tables, "find_spec", lambda name: object())
    with pytest.raises(HubError, match=r"a/b: http://127\.0\.0\.1:9 cannot be reached") as caught:
        load_hub("a/b", "x")
    assert "\n" not in str(caught.value)


def test_offline_nothing_is_asked_and_the_librarys_failure_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("asked the network")

    def load_dataset(repository: str) -> None:
        raise ConnectionError(f"couldn't reach {repository}\nand much more")

    library = types.ModuleType("datasets")
    library.__dict__["load_dataset"] = load_dataset
    monkeypatch.setitem(sys.modules, "datasets", library)
    monkeypatch.setattr(tables, "find_spec", lambda name: object())
    monkeypatch.setattr("urllib.request.urlopen", refuse)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(InputError, match="couldn't reach ylecun/mnist") as caught:
        load("mnist")
    assert "\n" not in str(caught.value)
    assert "--data-dir" in str(caught.value)


def test_without_the_library_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"pip install 'manyheads\[hub\]'"):
        load("hf:a/b")
