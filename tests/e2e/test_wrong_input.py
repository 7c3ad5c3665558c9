"""Wrong input ends in one line and exit status 2, and writes nothing."""

import struct
from pathlib import Path

import numpy as np
import pytest

TINY = (
    ("data.limit", 200),
    ("data.auxiliary", 20),
    ("partition.clients", 4),
    ("partition.min_train", 2),
    ("train.rounds", 1),
)
NETWORK = """
import math
from torch import nn
from manyheads.models import SplitModel

class Net(nn.Sequential):
    def __init__(self, inputs, classes):
        super().__init__()
        self.body = nn.Flatten()
        self.out = nn.Linear(inputs, classes)

def make(*, shape, classes):
    return SplitModel.from_module(Net(math.prod(shape), classes), head="fc")

def whole(*, shape, classes):
    return Net(math.prod(shape), classes)
"""


def sets(*pairs: tuple[str, object]) -> list[str]:
    return [word for key, value in pairs for word in ("--set", f"{key}={value}")]


def write_idx(path: Path, array: np.ndarray) -> None:
    header = struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    path.write_bytes(header + array.astype(np.uint8).tobytes())


@pytest.fixture
def mnist(tmp_path: Path) -> Path:
    """A folder with 60 train and 20 test images in MNIST's format."""
    folder = tmp_path / "mnist"
    folder.mkdir()
    for split, number in (("train", 60), ("t10k", 20)):
        pixels = np.random.default_rng(0).integers(0, 256, (number, 28, 28))
        write_idx(folder / f"{split}-images-idx3-ubyte", pixels)
        write_idx(folder / f"{split}-labels-idx1-ubyte", np.arange(number) % 10)
    return folder


@pytest.fixture
def refused(command, files, tmp_path):
    """Runs a command that must fail, and returns its line."""

    def call(*args: str | Path) -> str:
        before = files(tmp_path), sorted(tmp_path.rglob("*"))
        done = command(*args)
        assert done.status == 2, done
        assert done.err.count("\n") == 1
        assert done.out == ""
        assert (files(tmp_path), sorted(tmp_path.rglob("*"))) == before
        return done.error

    return call


@pytest.mark.parametrize(
    "start", [("run",), ("compare", "--methods", "pfedkdh,fedper", "--seeds", "0,1")], ids=["run", "compare"]
)
@pytest.mark.parametrize(
    ("key", "value", "line"),
    [
        ("train.lrr", 1, "unknown key 'train.lrr'; did you mean 'train.lr'?"),
        ("partition.alfa", 1, "unknown key 'partition.alfa'; did you mean 'partition.alpha'?"),
        ("partition.alpha", 0, "partition.alpha = 0.0: must be a number from 0.0001 to 1000000, such as 0.1"),
        ("train.participation", 1.5, "train.participation = 1.5: must be a number above 0 and at most 1"),
        (
            "partition.clients",
            300,
            "partition.clients = 300: 180 train images are too few for min_train = 2 each; choose at most 90 clients",
        ),
        ("data.auxiliary", 201, "data.auxiliary = 201: there are only 200 train images; choose fewer"),
        ("data.auxiliary", 0, "data.auxiliary = 0: this method trains on an auxiliary set at the server; give it"),
        ("data.source", "digit", "data.source: unknown source 'digit'; did you mean 'digits'?"),
        ("partition.kind", "dirichlett", "partition.kind: unknown partition 'dirichlett'; did you mean 'dirichlet'?"),
        ("model.name", "mpl", "model.name: unknown model 'mpl'; did you mean 'mlp'?"),
        ("model.name", "cnn", "model.name = 'cnn': images of 8x8 are too small, it needs 16x16 with these options;"),
        ("model.dropout", 1.0, "model.dropout = 1.0: must be at least 0 and less than 1"),
        ("algorithm.kd_weight", 2, "algorithm.kd_weight = 2.0: must be in [0, 1]"),
        ("run.engine", "thread", "run.engine: unknown engine 'thread'; did you mean 'threads'?"),
    ],
)
def test_a_wrong_value(refused, start, key, value, line):
    assert refused(*start, *sets(*TINY, (key, value))).startswith(line)


def test_an_unknown_method(refused):
    line = "algorithm.name: unknown method 'fedpr'; did you mean 'fedper'?"
    assert refused("run", *sets(*TINY, ("algorithm.name", "fedpr"))) == line
    assert refused("compare", "--methods", "fedavg,fedpr", *sets(*TINY)) == line


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("mynet:make", "Net has no module 'fc'; its linear layers are: out"),
        ("mynet:whole", "returned Net: return SplitModel.from_module(network, head='fc')"),
        ("mynet:mak", "unknown factory in 'mynet' 'mak'; did you mean 'make'?"),
        ("nonet:make", "cannot import 'nonet' (ModuleNotFoundError: No module named 'nonet'); is its folder on"),
    ],
)
def test_a_network_that_cannot_be_used(refused, tmp_path_factory, monkeypatch, name, line):
    folder = tmp_path_factory.mktemp("code")
    (folder / "mynet.py").write_text(NETWORK)
    monkeypatch.syspath_prepend(folder)
    said = refused("run", *sets(*TINY, ("model.name", name)))
    assert said.startswith(f"model.name = '{name}'")
    assert line in said


class TestDamagedData:
    args = ("--data-dir", ".", *sets(("data.source", "mnist"), ("partition.clients", 2), ("partition.min_train", 2)))

    def test_fewer_labels_than_images(self, refused, mnist):
        write_idx(mnist / "train-labels-idx1-ubyte", np.arange(59) % 10)
        line = f"{mnist}/train-labels-idx1-ubyte: 59 labels for the 60 images in train-images-idx3-ubyte"
        assert refused("run", *self.args) == line

    def test_a_truncated_file(self, refused, mnist):
        file = mnist / "t10k-images-idx3-ubyte"
        file.write_bytes(file.read_bytes()[:-100])
        assert refused("run", *self.args) == f"{file}: truncated: 15580 bytes for an array of shape [20, 28, 28]"

    def test_a_label_outside_the_classes(self, refused, mnist):
        write_idx(mnist / "train-labels-idx1-ubyte", np.where(np.arange(60) == 7, 10, 1))
        assert refused("run", *self.args).endswith("train-labels-idx1-ubyte: label 10 of image 7 must be in 0..9")

    def test_whole_files_are_taken(self, command, mnist):
        done = command("run", *self.args, *sets(("train.rounds", 1), ("model.hidden", [8])), "--folder", "run")
        assert done.status == 0, done.err


@pytest.mark.parametrize("start", [("run",), ("compare", "--methods", "fedper")], ids=["run", "compare"])
@pytest.mark.parametrize("folder", ["plain/run", "plain", "/proc/none/run"])
def test_a_folder_that_cannot_be_made(refused, tmp_path, start, folder):
    (tmp_path / "plain").write_text("a file")
    said = refused(*start, *sets(*TINY), "--folder", folder)
    assert folder in said
    assert "No such file" in said if folder.startswith("/proc") else "Not a directory" in said


def test_a_folder_that_is_taken(refused, command, tmp_path):
    assert command("run", *sets(*TINY), "--folder", "run").status == 0
    assert refused("run", *sets(*TINY), "--folder", "run") == (
        "run already holds this run; continue it with: manyheads resume run"
    )
    assert refused("run", *sets(*TINY, ("train.lr", 0.5)), "--folder", "run") == (
        "run already holds another experiment (differs in train.lr: 0.5 here, 0.015 there); choose another --folder"
    )
    compare = ("compare", "--methods", "fedper", *sets(*TINY), "--folder")
    assert refused(*compare, "run") == "run already holds a run; continue it with: manyheads resume run"

    assert command(*compare, "both").status == 0
    assert refused(*compare, "both") == "both already holds a comparison; continue it with: manyheads resume both"
    assert "choose another --folder" in refused("run", *sets(*TINY), "--folder", "both")


def test_a_folder_without_a_run(refused, tmp_path):
    assert refused("resume", "nowhere") == "there is no folder nowhere"
    (tmp_path / "empty").mkdir()
    assert refused("resume", "empty") == "empty holds no run: there is no config.toml in it"
    assert "neither a run" in refused("show", "empty")


@pytest.mark.parametrize("text", ["methods = [", 'methods = ["fedper"]', "\udcff"], ids=["torn", "no seeds", "no text"])
def test_a_damaged_comparison(refused, tmp_path, text):
    (tmp_path / "both").mkdir()
    (tmp_path / "both" / "comparison.toml").write_bytes(text.encode(errors="surrogateescape"))
    assert refused("resume", "both").startswith("both/comparison.toml is damaged: ")


def test_real_processes_exit_with_status_2(process, mnist, files, tmp_path):
    """The same in a process of its own: nothing else is printed, by torch or at exit."""
    (tmp_path / "mnist" / "train-labels-idx1-ubyte").write_bytes(b"\0\0\x08\x01\0\0\0\x01\1")
    (tmp_path / "mynet.py").write_text(NETWORK)
    before = files(tmp_path)
    labels = f"{mnist}/train-labels-idx1-ubyte: 1 labels for the 60 images in train-images-idx3-ubyte"
    for args, line in (
        (sets(("train.lrr", 1)), "unknown key 'train.lrr'; did you mean 'train.lr'?"),
        (["--data-dir", ".", *sets(("data.source", "mnist"))], labels),
        (
            sets(*TINY, ("model.name", "mynet:make")),
            "model.name = 'mynet:make': Net has no module 'fc'; its linear layers are: out",
        ),
    ):
        done = process("run", *args)
        assert (done.status, done.out, done.err) == (2, "", f"error: {line}\n")
        assert {name for name in files(tmp_path) if "__pycache__" not in name} == set(before)
