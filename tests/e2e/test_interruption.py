"""A run that was killed and resumed ends with the same bits as one that nobody disturbed."""

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from manyheads import Config, Experiment, compare
from manyheads.events import Event, RoundDone, Warned
from manyheads.prepare import load_dataset
from manyheads.storage import atomic

KILLS = 20


class Killed(BaseException):
    """Stands for SIGKILL: nothing in the package may catch it."""


def test_sigkill_at_twenty_moments_of_a_run_and_of_its_resumption(tmp_path, config_text, environment, bits):
    (tmp_path / "small.toml").write_text(config_text)
    program = Path(__file__).with_name("kill_runs.py")
    done = subprocess.run(
        [sys.executable, str(program), str(tmp_path / "small.toml"), str(tmp_path), str(KILLS)],
        capture_output=True,
        text=True,
        check=False,
        env={**environment, "OMP_NUM_THREADS": "1"},  # a forked process cannot use the threads of the one before it
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert len(report) == KILLS
    assert all(kill["killed"] for kill in report)
    assert len({kill["reached"][0] for kill in report}) > 2
    assert sum(kill["again"] for kill in report) >= KILLS // 4  # the others ended before
    whole = bits(tmp_path / "whole")
    assert whole["position"] == 6
    assert len(whole["private"]) > 3
    for kill in report:
        assert bits(Path(kill["folder"])) == whole, kill


@pytest.fixture
def start(tmp_path: Path, environment: dict[str, str]) -> Iterator[Callable[..., None]]:
    """Starts ``manyheads ARGS`` and kills it as soon as it has said something."""
    running: list[subprocess.Popen[str]] = []

    def call(*args: str, kill_at: str) -> None:
        line = [sys.executable, "-m", "manyheads", *args]
        process = subprocess.Popen(line, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True)
        running.append(process)
        assert process.stderr is not None
        said = []
        for text in process.stderr:
            said.append(text)
            if kill_at in text:
                process.kill()
                break
        assert process.wait() == -signal.SIGKILL, "".join(said)

    yield call
    for process in running:
        process.kill()
        process.communicate()


@pytest.mark.slow
def test_the_command_survives_three_kills(tmp_path, config_text, small, start, process, bits):
    (tmp_path / "small.toml").write_text(config_text)
    start("run", "small.toml", "--folder", "run", kill_at="before training")
    start("resume", "run", kill_at="round 2/6")
    start("resume", "run", kill_at="round 5/6")
    done = process("resume", "run")
    assert done.status == 0, done.err
    assert "pfedkdh: 6 rounds, " in done.err
    assert "warning" not in done.err
    Experiment(small).run(tmp_path / "whole")
    assert bits(tmp_path / "run") == bits(tmp_path / "whole")


def test_a_comparison_killed_in_its_second_method(tmp_path, config_text, small, start, process, command, bits, files):
    (tmp_path / "small.toml").write_text(config_text)
    start("compare", "small.toml", "--methods", "fedper,pfedkdh", "--folder", "both", kill_at="pfedkdh: round 2/6")
    before = files(tmp_path / "both" / "fedper")
    done = process("resume", "both")
    assert done.status == 0, done.err
    assert "fedper: 6 rounds, 6 of them done" in done.err
    assert "fedper: round" not in done.err
    assert "pfedkdh: 6 rounds, 2 of them done" in done.err
    assert "pfedkdh" in done.out
    assert "fedper" in done.out
    assert files(tmp_path / "both" / "fedper") == before

    compare(small, ["fedper", "pfedkdh"], folder=tmp_path / "whole")
    for method in ("fedper", "pfedkdh"):
        assert bits(tmp_path / "both" / method) == bits(tmp_path / "whole" / method)

    before = files(tmp_path / "both")
    again = command("resume", "both")
    assert again.status == 0
    assert again.out == done.out
    assert files(tmp_path / "both") == before


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Config, int], Path]:
    """The folder of a run that was stopped after a round."""

    def make(config: Config, round: int) -> Path:
        folder = tmp_path_factory.mktemp("stopped") / "run"

        def stop(event: Event) -> None:
            if isinstance(event, RoundDone) and event.round == round:
                raise Killed

        with pytest.raises(Killed):
            Experiment(config).run(folder, stop)
        return folder

    return make


def test_stopped_before_and_after_every_fsync_and_rename_of_a_commit(tmp_path, tiny, stopped, monkeypatch, bits):
    dataset = load_dataset(tiny)
    Experiment(tiny, dataset=dataset).run(tmp_path / "whole")
    whole = bits(tmp_path / "whole")
    base = stopped(tiny, 0)  # commits 0 and 1 are done, commit 2 comes first

    def resume(folder: Path, kill_at: int | None = None) -> list[str]:
        """Resume a copy of the run, stop it at a step, and return the steps that it took."""
        shutil.copytree(base, folder)
        steps: list[str] = []

        def step(operation: str) -> None:
            if kill_at is not None and len(steps) >= kill_at:
                raise Killed  # at every later one as well: a killed process does nothing more
            steps.append(operation)

        with monkeypatch.context() as patch:
            patch.setattr(atomic, "step", step)
            try:
                Experiment.resume(folder, dataset=dataset)
            except Killed:
                assert kill_at is not None
        return steps

    undisturbed = resume(tmp_path / "undisturbed")
    kills = _of_first_commit(undisturbed)
    # Two private states, the server's state and the manifest are renamed; these and two logs are synced, and folders.
    assert sum("rename" in undisturbed[kill] for kill in kills) == 2 * 4
    assert sum("sync " in undisturbed[kill] for kill in kills) == 2 * 6
    for kill in kills:
        folder = tmp_path / str(kill)
        assert len(resume(folder, kill)) == kill
        Experiment.resume(folder, dataset=dataset)
        assert bits(folder) == whole, undisturbed[kill]
        shutil.rmtree(folder)


def _of_first_commit(steps: list[str]) -> list[int]:
    """Where in a list of steps those before and after each fsync and rename of the first commit are."""
    first, end, *_ = (n for n, name in enumerate(steps) if name.startswith("before append") and "rounds" in name)
    return [n for n in range(first, end) if steps[n].split()[1] in ("sync", "sync_folder", "rename")]


def truncate(file: Path) -> Path:
    file.write_bytes(file.read_bytes()[:-20])
    return file


@pytest.mark.parametrize("pattern", ["checkpoints/2.safetensors", "checkpoints/2.json", "clients/*/2.safetensors"])
def test_a_truncated_checkpoint_falls_back_to_the_one_before(tmp_path, tiny, stopped, bits, pattern):
    folder = stopped(tiny, 1)
    damaged = truncate(next(iter(sorted(folder.glob(pattern)))))
    events: list[Any] = []
    result = Experiment.resume(folder, on_event=events.append)
    (warning,) = [event for event in events if isinstance(event, Warned)]
    assert warning.label == "pfedkdh"
    assert str(damaged) in warning.message
    assert "goes on from checkpoint 1" in warning.message
    assert [event.round for event in events if isinstance(event, RoundDone)] == [1, 2]
    assert len(result.rows) == 4
    Experiment(tiny).run(tmp_path / "whole")
    assert bits(folder) == bits(tmp_path / "whole")


def test_the_command_says_that_a_checkpoint_is_damaged(tmp_path, tiny, stopped, process, bits):
    folder = stopped(tiny, 1)
    damaged = truncate(folder / "checkpoints" / "2.safetensors")
    done = process("resume", folder)
    assert done.status == 0, done.err
    (warning,) = [line for line in done.err.splitlines() if "warning" in line]
    assert warning.startswith("pfedkdh: warning: checkpoint 2 is damaged")
    assert str(damaged) in warning
    assert warning.endswith("the run goes on from checkpoint 1")
    Experiment(tiny).run(tmp_path / "whole")
    assert bits(folder) == bits(tmp_path / "whole")
