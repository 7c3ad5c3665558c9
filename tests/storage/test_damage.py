"""Files of a checkpoint that are no longer what was written."""

import json
import shutil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manyheads.errors import InputError, RunError
from manyheads.storage.run_folder import RunFolder

NEWEST = ["checkpoints/4.json", "checkpoints/4.safetensors", "rounds.jsonl", "clients/index.jsonl",
          "clients/5/4.safetensors", "clients/4/4.safetensors"]  # fmt: skip


def truncate(data: bytes) -> bytes:
    return data[:-3]


def empty(data: bytes) -> bytes:
    return b""


def flip(data: bytes) -> bytes:
    return data[:-9] + bytes([data[-9] ^ 1]) + data[-8:]


@pytest.mark.parametrize("how", [truncate, flip])
@pytest.mark.parametrize("name", NEWEST)
def test_the_run_goes_on_from_the_checkpoint_before(toy, tmp_path, name, how):
    path = toy.finished(tmp_path / "run", 4)
    file = path / name
    file.write_bytes(how(file.read_bytes()))
    shutil.copytree(path, tmp_path / "again")
    state, warnings = toy.restored(path)
    assert state == toy.expected(3)
    (warning,) = warnings
    assert "\n" not in warning
    assert str(file) in warning
    assert warning.startswith("checkpoint 4 is damaged")
    assert warning.endswith("the run goes on from checkpoint 3")
    assert toy.restored(path) == (toy.expected(3), [])
    toy.finish(tmp_path / "again", 6)


@pytest.mark.parametrize("name", [*NEWEST[1:2], *NEWEST[4:]])
def test_a_missing_file_is_damage(toy, tmp_path, name):
    path = toy.finished(tmp_path / "run", 4)
    (path / name).unlink()
    state, warnings = toy.restored(path)
    assert state == toy.expected(3)
    assert str(path / name) in warnings[0]


@pytest.mark.parametrize("name", ["rounds.jsonl", "clients/index.jsonl", "clients/1/3.safetensors", "checkpoints"])
@pytest.mark.parametrize("how", [empty, truncate])
def test_nothing_is_removed_when_no_checkpoint_is_intact(toy, tmp_path, name, how):
    path = toy.finished(tmp_path / "run", 4)
    files = sorted((path / name).glob("*.json")) if name == "checkpoints" else [path / name]
    if files == [path / "clients/1/3.safetensors"]:
        files = sorted((path / "clients").glob("[0-3]/*.safetensors"))
    if files[0].suffix == ".jsonl":
        how = empty  # a few bytes less would leave the checkpoint before
    for file in files:
        file.write_bytes(how(file.read_bytes()))
    before = toy.files(path)
    with RunFolder.open(path) as folder, pytest.raises(RunError, match="cannot be resumed") as caught:
        folder.restore()
    assert "\n" not in str(caught.value)
    assert str(files[-1]) in str(caught.value) or str(files[0]) in str(caught.value)
    assert toy.files(path) == before


def test_lost_manifests_are_no_fresh_start(toy, tmp_path):
    path = toy.finished(tmp_path / "run", 4)
    for file in (path / "checkpoints").glob("*.json"):
        file.unlink()
    before = toy.files(path)
    with RunFolder.open(path) as folder, pytest.raises(RunError, match="no manifest"):
        folder.restore()
    assert toy.files(path) == before


def test_a_missing_folder_is_one_line(toy, tmp_path):
    for name in ("checkpoints", "clients"):
        path = toy.finished(tmp_path / name, 4)
        shutil.rmtree(path / name)
        with RunFolder.open(path) as folder, pytest.raises(RunError, match=f"cannot be resumed.*{name}"):
            folder.restore()


def test_a_newer_format_is_not_taken_for_damage(toy, tmp_path, monkeypatch):
    path = toy.finished(tmp_path / "run", 3)
    monkeypatch.setattr("manyheads.storage.checkpoints.FORMAT", 3)
    with RunFolder.open(path) as folder, pytest.raises(InputError, match="has format 2"):
        folder.restore()
    monkeypatch.undo()
    assert toy.restored(path) == (toy.expected(3), [])


def test_a_manifest_is_json_that_says_its_format(toy, tmp_path):
    manifest = json.loads((toy.finished(tmp_path / "run", 3) / "checkpoints" / "3.json").read_text())
    assert manifest["format"] == 2
    assert manifest["extra"] == {"next": 4}


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_any_damage_gives_a_known_state_or_one_line(toy, tmp_path_factory, data):
    base = tmp_path_factory.getbasetemp() / "undamaged"
    if not base.exists():
        toy.finished(base, 4)
    path = tmp_path_factory.mktemp("damaged") / "run"
    shutil.copytree(base, path)
    names = [name for name in toy.files(base) if name.startswith(("checkpoints", "clients", "rounds"))]
    for name in data.draw(st.lists(st.sampled_from(names), min_size=1, max_size=3, unique=True)):
        content = bytearray((path / name).read_bytes())
        place = data.draw(st.integers(0, len(content) - 1))
        if data.draw(st.booleans()):
            content[place] ^= data.draw(st.integers(1, 255))
        else:
            del content[place:]
        (path / name).write_bytes(content)
    message, state, warnings = "", None, []
    try:
        state, warnings = toy.restored(path)
    except RunError as error:
        message = str(error)
    assert "\n" not in message
    assert message or state == toy.expected(state["position"])
    assert message or (state["position"], len(warnings)) in [(4, 0), (3, 1)]
    shutil.rmtree(path)
