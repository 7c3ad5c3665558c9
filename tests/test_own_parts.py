"""A run with a method, network or file of the user's own says so, and is never finished with another one."""

import io
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from manyheads import Config, Experiment
from manyheads.algorithms import registry
from manyheads.algorithms.fedper import FedPer
from manyheads.cli import main
from manyheads.config_options import catalog
from manyheads.errors import InputError
from manyheads.events import RoundDone
from manyheads.models.registry import build
from manyheads.report import summary


@dataclass(frozen=True)
class Mine(FedPer):
    pass


class StoppedError(Exception):
    pass


def stop(event):
    if isinstance(event, RoundDone) and event.round == 0:
        raise StoppedError


def own_net():
    return build("mlp", shape=(1, 8, 8), classes=10, options={"hidden": (8,), "dropout": 0.0})


CONFIG = Config.profile("digits", ["train.rounds=2", "partition.clients=4", "data.limit=400"])


@pytest.mark.parametrize(("own", "name"), [({"algorithm": Mine()}, "Mine"), ({"model": own_net}, "own_net")])
def test_a_run_with_own_parts_goes_on_with_these_only(tmp_path, own, name):
    (what,) = own
    with pytest.raises(StoppedError):
        Experiment(CONFIG, **own).run(tmp_path / "run", stop)
    with pytest.raises(
        InputError, match=rf"was run with its own {what} \({name}\); go on from Python: .*{what}=\.\.\."
    ):
        Experiment.resume(tmp_path / "run")
    result = Experiment.resume(str(tmp_path / "run"), **own)
    assert result.server == Experiment(CONFIG, **own).run().server
    shown = Console(file=io.StringIO(), width=100)
    summary.show(tmp_path / "run", shown)
    assert name in shown.file.getvalue()


def test_an_accuracy_that_is_not_there_names_those_that_are():
    result = Experiment(CONFIG).run()
    with pytest.raises(InputError, match=r"no accuracy for \('personl', .*; the run has .*\('personal', 'client test'"):
        result.accuracy("personl")
    assert len(repr(result)) < 200


HEAD = "from dataclasses import dataclass\nfrom manyheads.contract import Algorithm\n"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("class Odd(\n", r"line 1: .\(. was never closed"),
        (
            HEAD + "@dataclass(frozen=True)\nclass Prox(Algorithm):\n    pass\n",
            "no class is named like the file.* it has Prox",
        ),
        ("x = 1\n", "no class is named like the file, such as Odd; it has none"),
        (HEAD + "class Odd(Algorithm):\n    mu: float = 0.1\n", "class Odd needs the decorator"),
        (
            HEAD + "@dataclass(frozen=True)\nclass Odd(Algorithm):\n    mu: float = 1 / 3\n",
            "the default of mu must be a plain",
        ),
        (HEAD + "@dataclass(frozen=True)\nclass Odd(Algorithm):\n    mu: float\n", "the default of mu must be a plain"),
    ],
)
def test_a_method_file_that_is_wrong_is_named_and_hides_no_other(tmp_path: Path, monkeypatch, text, why):
    (tmp_path / "odd.py").write_text(text)
    (tmp_path / "_shared.py").write_text("")
    (tmp_path / "good.py").write_text(HEAD + '@dataclass(frozen=True)\nclass Good(Algorithm):\n    """Fine."""\n')
    monkeypatch.setattr(registry, "_FOLDER", tmp_path)
    registry._class.cache_clear()
    try:
        assert registry.names() == ["good", "odd"]
        with pytest.raises(InputError, match=why):
            registry.fields("odd")
        listed = {name: said for name, said, _ in catalog("methods", {})}
        assert listed["good"] == "Fine."
        assert listed["odd"].startswith("cannot be used: method 'odd'")
    finally:
        registry._class.cache_clear()


def test_a_config_that_was_edited_is_not_resumed(tmp_path):
    with pytest.raises(StoppedError):
        Experiment(CONFIG).run(tmp_path / "run", stop)
    file = tmp_path / "run" / "config.toml"
    file.write_text(file.read_text().replace("rounds = 2", "rounds = 4"))
    with pytest.raises(InputError, match=r"config.toml is not what the run began with; start a new run with it"):
        Experiment.resume(tmp_path / "run")


def test_own_data_below_the_current_folder_is_found_from_elsewhere(tmp_path, monkeypatch, capsys):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "own.npz", x_train=rng.integers(0, 256, (120, 8, 8), np.uint8), y_train=np.arange(120) % 4)
    monkeypatch.chdir(tmp_path)
    keys = ("data.source=./own.npz", "partition.clients=2", "train.rounds=1", "algorithm.name=fedavg")
    monkeypatch.setattr(sys, "argv", ["manyheads", "run", *(word for key in keys for word in ("--set", key))])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code in (0, None), capsys.readouterr().err
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["own-fedavg-0"]
    monkeypatch.chdir("/")
    assert Experiment.resume(tmp_path / "runs" / "own-fedavg-0").rows
