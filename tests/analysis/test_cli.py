import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from matplotlib.image import imread

from manyheads import Config, Experiment, cli
from manyheads.cli_options import numbers
from manyheads.errors import InputError

SMALL = {
    "data.limit": 200,
    "data.auxiliary": 0,
    "partition.clients": 3,
    "partition.min_train": 5,
    "model.name": "cnn",
    "model.kernel": 3,
    "model.padding": 1,
    "model.widths": [3, 4],
    "model.features": 8,
    "train.rounds": 1,
    "train.participation": 1.0,
    "train.lr": 0.1,
    "run.workers": 1,
}
Command = Callable[..., str]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two short runs on digits: ``fedavg`` and ``fedrep``."""
    folder = tmp_path_factory.mktemp("runs")
    for name in ("fedavg", "fedrep"):
        Experiment(Config().with_values(SMALL | {"algorithm.name": name})).run(folder / name)
    return folder


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], folder: Path) -> Command:
    """Runs ``manyheads analyse ARGS`` among the runs and returns what it printed; the status must be as given."""
    monkeypatch.chdir(folder)

    def call(*args: str, status: int = 0) -> str:
        monkeypatch.setattr(sys, "argv", ["manyheads", "analyse", *args])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        printed = capsys.readouterr()
        assert (stopped.value.code or 0) == status, printed.err
        return printed.err if status else printed.out

    return call


def test_tsne_end_to_end(command: Command, tmp_path: Path) -> None:
    out = tmp_path / "new" / "features.png"
    printed = command("tsne", "fedavg", "fedrep", "--out", str(out), "--images", "60", "--labels", "one, two")
    first, second, last = printed.splitlines()
    assert first.startswith("one: silhouette ")
    assert second.startswith("two: silhouette ")
    assert last == f"wrote {out}"
    height, width = imread(out).shape[:2]
    assert (width, height > 500) == (1400, True)
    assert 20_000 < out.stat().st_size < 2_000_000


def test_gradcam_end_to_end(command: Command, tmp_path: Path) -> None:
    out = tmp_path / "looks.png"
    assert command("gradcam", "fedrep", "--client", "1", "--images", "2", "--out", str(out)) == f"wrote {out}\n"
    height, width = imread(out).shape[:2]
    assert 500 < width < height < 1000
    assert 10_000 < out.stat().st_size < 1_000_000


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("tsne", "nothing"), "there is no folder nothing"),
        (("tsne", "fedavg", "--clients", "0,x"), "--clients: 'x' is not a whole number"),
        (("tsne", "fedavg", "--clients", "3"), "client 3: the run has clients 0 to 2"),
        (("tsne", "fedavg", "--labels", "a,b"), "--labels: 2 labels for 1 runs"),
        (("gradcam", "fedavg", "--client", "7"), "client 7: the run has clients 0 to 2"),
    ],
)
def test_wrong_input_is_one_line(args: tuple[str, ...], words: str, command: Command, tmp_path: Path) -> None:
    printed = command(*args, "--out", str(tmp_path / "out.png"), status=2)
    assert printed.startswith(f"error: {words}")
    assert printed.count("\n") == 1
    assert not (tmp_path / "out.png").exists()


def test_a_picture_that_cannot_be_written_is_refused(command: Command, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    out = tmp_path / "file" / "out.png"
    assert command("gradcam", "fedavg", "--out", str(out), status=2).startswith(f"error: --out {out}: cannot make")


@pytest.mark.parametrize(("text", "found"), [("", []), ("2", [2]), ("0, 1,12", [0, 1, 12])])
def test_numbers(text: str, found: list[int]) -> None:
    assert numbers("--clients", text) == found


@pytest.mark.parametrize("text", ["a", "1,", "-1", "1.5", ","])
def test_what_is_no_number(text: str) -> None:
    with pytest.raises(InputError, match=r"^--clients: '.*' is not a whole number of at least 0; write them as 0,1,2$"):
        numbers("--clients", text)
