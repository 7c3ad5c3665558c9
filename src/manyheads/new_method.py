"""``manyheads new-method``: a method's file, its test and its page, from templates that run as they are."""

import ast
import keyword
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from string import Template

from manyheads.errors import InputError

_PACKAGE = Path(__file__).resolve().parent
_METHOD, _TEST, _PAGE = "src/manyheads/algorithms/{}.py", "tests/algorithms/test_{}.py", "docs/methods/{}.md"
_TEMPLATES = {_METHOD: "method.py.txt", _TEST: "test.py.txt", _PAGE: "page.md.txt"}


def create(name: str, folder: Path | None = None) -> list[str]:
    """Writes the three files of a new method, or none of them.

    Args:
        name: a lower-case identifier. The class is named like it, without underscores and in title case.
        folder: a source checkout of manyheads; by default the one that runs.

    Returns:
        The lines to print: what was written, and what to try next.

    Raises:
        InputError: the name cannot be used, a file exists or cannot be written, or there is no checkout.
    """
    cls = _class_name(name)
    root = _checkout(folder)
    _check_free(name, root / _METHOD.format(name))
    files = {root / path.format(name): fill(template, name=name, cls=cls) for path, template in _TEMPLATES.items()}
    _write_all(files)
    prefix = "" if root / "src/manyheads" == _PACKAGE else f"PYTHONPATH={shlex.quote(str(root / 'src'))} "
    test = shlex.quote(str(_shown(root / _TEST.format(name))))
    return [
        *(f"wrote {_shown(path)}" for path in files),
        "it runs as it is; try it, then make it yours:",
        f"  {prefix}manyheads run --set algorithm.name={name} --set train.rounds=5",
        f"  {prefix}python -m pytest {test}",
    ]


def fill(template: str, **values: str) -> str:
    """A template of the package, such as ``page.md.txt``, with its ``$names`` filled in."""
    return Template((_PACKAGE / "templates" / template).read_text("utf-8")).safe_substitute(values)


def _class_name(name: str) -> str:
    """The class of a method. Raises InputError where the name is none for a file, or the class none for a method."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        near = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_0123456789") or "mymethod"
        raise InputError(f"method {name!r}: must be a lower-case identifier, such as {near!r}")
    cls = name.title().replace("_", "")
    if keyword.iskeyword(name) or keyword.iskeyword(cls):
        raise InputError(f"method {name!r}: is a keyword of Python; take another name, such as {'my_' + name!r}")
    imports = (node for node in ast.parse(fill("method.py.txt", cls=cls)).body if isinstance(node, ast.ImportFrom))
    if cls in {alias.name for line in imports for alias in line.names}:
        raise InputError(f"method {name!r}: its file imports another {cls}; take another name")
    return cls


def _checkout(folder: Path | None) -> Path:
    """The root of a source checkout."""
    root = _PACKAGE.parents[1] if folder is None else folder.resolve()
    if (root / "pyproject.toml").is_file() and (root / _METHOD).parent.is_dir():
        return root
    if folder is None:
        raise InputError(
            f"manyheads is installed in {_PACKAGE}, which is no source checkout; clone the project and "
            "pip install -e CLONE, or give --folder CLONE"
        )
    raise InputError(f"--folder {folder}: is no source checkout of manyheads, it has no {Path(_METHOD).parent}")


def _check_free(name: str, method: Path) -> None:
    """Raises InputError where another class has the new one's name: methods are found by it, without case."""
    for file in sorted(method.parent.glob("*.py")):
        for cls in re.findall(r"^class (\w+)", file.read_text("utf-8"), re.MULTILINE):
            if cls.lower() == name.replace("_", ""):
                raise InputError(f"method {name!r}: the name is taken by {cls} in {file}; take another name")


def _write_all(files: Mapping[Path, str]) -> None:
    """Writes files that do not exist; where one cannot be written, those before it are removed again."""
    for path in files:
        if path.exists():
            raise InputError(f"{path} exists and is not written over; take another name")
    written: list[Path] = []
    try:
        for path, text in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("x", encoding="utf-8") as file:
                written.append(path)
                file.write(text)
    except BaseException as error:
        for done in written:
            done.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise InputError(f"cannot write {error.filename or path}: {error.strerror}") from None
        raise


def _shown(path: Path) -> Path:
    """A path as short as it can be said from here."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
