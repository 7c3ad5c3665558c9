"""Small experiments, the ways to run a command, and what "the same bits" means."""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from manyheads import Config, cli
from manyheads.storage.run_folder import RunFolder

SOURCE = str(Path(cli.__file__).parents[1])

# Dropout, several workers, clients that join late: whatever a resumed run could get wrong.
SMALL = """
[data]
auxiliary = 60
limit = 400
[partition]
clients = 6
min_train = 5
[model]
name = "mlp"
hidden = [24]
dropout = 0.25
[train]
rounds = 6
participation = 0.4
epochs = 1
batch = 16
lr = 0.1
momentum = 0.5
[algorithm]
name = "pfedkdh"
recalibration_epochs = 1
adapt_steps = 2
[run]
workers = 2
eval_every = 2
"""
TINY = {
    "data.limit": 120,
    "data.auxiliary": 20,
    "partition.clients": 3,
    "model.hidden": [8],
    "train.rounds": 3,
    "train.participation": 0.7,
    "run.workers": 1,
}


@dataclass(frozen=True)
class Done:
    """A command that ended."""

    status: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """The one line that a person reads; it must be the last of stderr, and the only one of its kind."""
        *before, last = self.err.splitlines()
        assert last.startswith("error: "), self.err
        assert not [line for line in before if line.startswith(("error", "Traceback", " "))], self.err
        return last.removeprefix("error: ")


Command = Callable[..., Done]


@pytest.fixture
def config_text() -> str:
    """A small experiment, TOML."""
    return SMALL


@pytest.fixture
def small() -> Config:
    """The experiment of ``config_text``."""
    return Config.parse(SMALL)


@pytest.fixture
def tiny(small: Config) -> Config:
    """Three clients and three rounds, done in a tenth of a second."""
    return small.with_values(TINY)


@pytest.fixture
def environment() -> dict[str, str]:
    """The environment of real processes: they see this package, and a width that wraps nothing."""
    return {**os.environ, "PYTHONPATH": SOURCE, "COLUMNS": "200"}


@pytest.fixture
def process(tmp_path: Path, environment: dict[str, str]) -> Command:
    """``manyheads ARGS`` as a process of its own, in an empty folder."""

    def call(*args: str | Path, interpreter: tuple[str, ...] = ()) -> Done:
        line = [sys.executable, *interpreter, "-m", "manyheads", *map(str, args)]
        done = subprocess.run(line, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        return Done(done.returncode, done.stdout, done.stderr)

    return call


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """``manyheads ARGS`` in this process, which has torch loaded already."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def call(*args: str | Path) -> Done:
        monkeypatch.setattr(sys, "argv", ["manyheads", *map(str, args)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        printed = capsys.readouterr()
        return Done(int(stopped.value.code or 0), printed.out, printed.err)

    return call


@pytest.fixture
def files() -> Callable[[Path], dict[str, bytes]]:
    """Everything in a folder, by name."""

    def read(folder: Path) -> dict[str, bytes]:
        return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}

    return read


@pytest.fixture
def bits(files: Callable[[Path], dict[str, bytes]]) -> Callable[[Path], dict[str, Any]]:
    """All of a stored run that must not depend on interruptions, for comparison with ``==``.

    That is everything but seconds and pictures: the names of the files, the config, the partition, the rows, the
    server's state, every client's private state, and what else the checkpoint holds.
    """

    def read(folder: Path) -> dict[str, Any]:
        with RunFolder.open(folder) as opened:
            restored = opened.restore()
            assert restored is not None
            assert restored.warnings == []
            rows = [{key: value for key, value in row.items() if key != "seconds"} for row in opened.rows()]
            return {
                "names": {name for name in files(folder) if not name.endswith(".png")},
                "config": opened.config,
                "data": opened.data,
                "partition": opened.partition_path.read_bytes(),
                "rows": rows,
                "position": restored.position,
                "server": restored.server,
                "private": dict(restored.private),
                "extra": restored.extra,
            }

    return read
