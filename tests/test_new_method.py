import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import clone
import pytest

from manyheads import cli, new_method
from manyheads.errors import InputError

PATHS = ("src/manyheads/algorithms/{}.py", "tests/algorithms/test_{}.py", "docs/methods/{}.md")
LOSS = "    def loss(self"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with two methods and nothing else."""
    folder = tmp_path / "clone"
    methods = folder / "src/manyheads/algorithms"
    methods.mkdir(parents=True)
    shutil.copy(clone.ROOT / "pyproject.toml", folder)
    (methods.parent / "contract").mkdir()
    for name in ("__init__.py", "errors.py", "contract/__init__.py", "algorithms/registry.py"):
        (methods.parent / name).touch()
    (methods / "_shared.py").write_text("class SharedParts:\n    pass\n")
    (methods / "fed_x.py").write_text("class FedX(Algorithm):\n    pass\n")
    return folder


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., int]:
    monkeypatch.chdir(tmp_path)

    def call(*args: str | Path) -> int:
        monkeypatch.setattr(sys, "argv", ["manyheads", "new-method", *map(str, args)])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        return int(stopped.value.code or 0)

    return call


def files(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_new_method_runs_and_its_test_notices_one_that_does_nothing(tmp_path: Path) -> None:
    folder = clone.make(tmp_path / "clone")
    method, test, _ = (path.format("idle") for path in PATHS)
    text = new_method.fill("method.py.txt", name="idle", cls="Idle")
    idle = text[: text.index(LOSS)]
    done = clone.run(
        folder,
        [
            "manyheads new-method fed_new",
            "manyheads new-method idle",
            "manyheads run --set algorithm.name=fed_new --set algorithm.shrink=0.5 --set train.rounds=2",
            "manyheads list methods",
            (method, idle),
            f"python -m pytest -q tests/algorithms/test_fed_new.py {test}",
        ],
    )
    assert "fed_new" in done.stdout, done.stderr
    assert "shrink = 0.01" in done.stdout
    assert (folder / "runs/digits-fed_new-0/rounds.jsonl").read_text().count('"shrink":') == 2
    assert f"FAILED {test}::test_the_term_pulls_the_head_to_zero" in done.stdout
    assert "1 failed, 3 passed" in done.stdout
    assert done.returncode == 1


@pytest.mark.parametrize("name", ["fedy", "my_own_2", "zzz"])
def test_the_files_are_clean(tmp_path: Path, checkout: Path, name: str) -> None:
    new_method.create(name, checkout)
    written = [path.format(name) for path in PATHS[:2]]
    for what in ("check", "format --check"):
        line = [sys.executable, "-m", "ruff", *what.split(), "--no-cache", *written]
        subprocess.run(line, check=True, cwd=checkout)


def test_it_says_what_it_wrote_and_what_comes_next(
    checkout: Path, command: Callable[..., int], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = files(checkout)
    assert command("fedy", "--folder", checkout) == 0
    written = [path.format("fedy") for path in PATHS]
    here = f"PYTHONPATH={checkout / 'src'} "
    commands = ["manyheads run --set algorithm.name=fedy --set train.rounds=5", f"python -m pytest clone/{written[1]}"]
    lines = [f"wrote clone/{path}" for path in written]
    lines += ["it runs as it is; try it, then make it yours:", *(f"  {here}{line}" for line in commands)]
    assert capsys.readouterr().out.splitlines() == lines
    assert set(files(checkout)) - set(before) == {str(checkout / path) for path in written}
    assert before.items() <= files(checkout).items()

    monkeypatch.setattr(new_method, "_PACKAGE", installed(checkout))
    assert command("fedz") == 0
    said = capsys.readouterr().out.splitlines()
    assert said[-2] == "  manyheads run --set algorithm.name=fedz --set train.rounds=5"
    assert said[-1] == f"  python -m pytest clone/{PATHS[1].format('fedz')}"


def installed(checkout: Path) -> Path:
    """The package as if it ran from the checkout: with its templates."""
    package = checkout / "src/manyheads"
    (package / "templates").symlink_to(Path(new_method.__file__).parent / "templates")
    return package


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("Fed-Y", "must be a lower-case identifier, such as 'fed_y'"),
        ("2fast", "must be a lower-case identifier, such as 'fast'"),
        ("_fedy", "must be a lower-case identifier, such as 'fedy'"),
        ("fédy", "must be a lower-case identifier, such as 'f_dy'"),
        ("../fedy", "must be a lower-case identifier, such as 'fedy'"),
        ("fedy\n", "must be a lower-case identifier, such as 'fedy'"),
        ("", "must be a lower-case identifier, such as 'mymethod'"),
        ("class", "is a keyword of Python; take another name, such as 'my_class'"),
        ("none", "is a keyword of Python; take another name, such as 'my_none'"),
        ("algorithm", "its file imports another Algorithm; take another name"),
        ("fed_x", "the name is taken by FedX in .*/algorithms/fed_x.py; take another name"),
        ("fedx", "the name is taken by FedX in .*/algorithms/fed_x.py; take another name"),
        ("shared_parts", "the name is taken by SharedParts in .*/algorithms/_shared.py; take another name"),
    ],
)
def test_names_that_cannot_be_used(checkout: Path, name: str, why: str) -> None:
    before = files(checkout)
    with pytest.raises(InputError, match=rf"^method {name!r}: {why}$".replace("\\n'", r"\\n'")):
        new_method.create(name, checkout)
    assert files(checkout) == before


@pytest.mark.parametrize("path", [*PATHS, "registry"])
def test_what_exists_stays(
    checkout: Path, command: Callable[..., int], capsys: pytest.CaptureFixture[str], path: str
) -> None:
    name = "registry" if path == "registry" else "fedy"
    taken = checkout / (PATHS[0] if path == "registry" else path).format(name)
    taken.parent.mkdir(parents=True, exist_ok=True)
    taken.touch()
    before = files(checkout)
    assert command(name, "--folder", checkout) == 2
    assert capsys.readouterr().err == f"error: {taken} exists and is not written over; take another name\n"
    assert files(checkout) == before


def test_nothing_is_left_where_a_file_cannot_be_written(
    checkout: Path, command: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    (checkout / "docs").touch()  # the third file has no folder
    before = files(checkout)
    assert command("fedy", "--folder", checkout) == 2
    assert capsys.readouterr().err.startswith(f"error: cannot write {checkout}/docs")
    assert files(checkout) == before


def test_ctrl_c_leaves_nothing(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, real = files(checkout), Path.open

    def opened(self: Path, *args: str, **more: str) -> object:
        if self.suffix == ".md" and args[:1] == ("x",):
            raise KeyboardInterrupt
        return real(self, *args, **more)

    monkeypatch.setattr(Path, "open", opened)
    with pytest.raises(KeyboardInterrupt):
        new_method.create("fedy", checkout)
    monkeypatch.undo()
    assert files(checkout) == before


def test_an_installed_package_is_no_checkout(
    tmp_path: Path, command: Callable[..., int], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "lib/site-packages/manyheads"
    (package / "algorithms").mkdir(parents=True)
    (package / "templates").symlink_to(Path(new_method.__file__).parent / "templates")
    monkeypatch.setattr(new_method, "_PACKAGE", package)
    assert command("fedy") == 2
    assert capsys.readouterr().err == (
        f"error: manyheads is installed in {package}, which is no source checkout; clone the project and "
        "pip install -e CLONE, or give --folder CLONE\n"
    )
    assert command("fedy", "--folder", "lib") == 2
    assert capsys.readouterr().err == (
        "error: --folder lib: is no source checkout of manyheads, it has no src/manyheads/algorithms\n"
    )
    assert not [path for path in files(tmp_path) if "fedy" in path]
