"""Nothing is pickled: reading somebody's run folder never runs somebody's code."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import manyheads

PICKLERS = {"pickle", "_pickle", "cPickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
SUFFIXES = {".toml", ".json", ".jsonl", ".safetensors", ".png", ".html"}
SOURCES = sorted(Path(manyheads.__file__).parent.rglob("*.py"))


def offences(code: str) -> Iterator[str]:
    """Whatever in a program could read or write pickled objects."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            yield from (f"import {name.name}" for name in node.names if name.name.split(".")[0] in PICKLERS)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found = [f"{node.module}.{name.name}" for name in node.names]
            yield from (name for name in found if name.split(".")[0] in PICKLERS or _reads(name))
        elif isinstance(node, ast.Call) and _reads(name := ast.unparse(node.func)):
            allowed = {key.arg: ast.unparse(key.value) for key in node.keywords}.get("allow_pickle")
            if name.startswith("torch.") or allowed != "False":
                yield ast.unparse(node)


def _reads(name: str) -> bool:
    module, _, function = name.rpartition(".")
    return module in ("torch", "torch.serialization", "np", "numpy") and function in ("load", "save")


@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "import joblib.numpy_pickle",
        "from pickle import loads",
        "from torch import load",
        "torch.load(path)",
        "torch.save(x, path)",
        "torch.load(path, weights_only=True)",
        "np.load(path)",
        "np.load(path, allow_pickle=True)",
        "np.save(path, x)",
    ],
)
def test_the_search_finds(code):
    assert list(offences(code))


def test_no_source_file_pickles():
    assert len(SOURCES) > 50
    assert list(offences("np.load(path, allow_pickle=False)")) == []
    assert {file.name: found for file in SOURCES if (found := list(offences(file.read_text("utf-8"))))} == {}


def test_what_a_run_folder_holds(command, tmp_path, config_text):
    (tmp_path / "small.toml").write_text(config_text)
    assert command("compare", "small.toml", "--methods", "fedper,pfedkdh", "--folder", "runs").status == 0
    found = {path for path in (tmp_path / "runs").rglob("*") if path.is_file()}
    assert {path.suffix for path in found if path.name != ".manyheads.lock"} <= SUFFIXES
    assert {".toml", ".json", ".jsonl", ".safetensors"} <= {path.suffix for path in found}
    for path in found:  # a pickle may have any name; all of them end with a full stop after the protocol's mark
        data = path.read_bytes()
        assert not data.startswith((b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05", b"PK\x03\x04")), path
