"""Which methods there are, read from their files without importing torch."""

from __future__ import annotations

import ast
import importlib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from manyheads.errors import InputError, unknown

if TYPE_CHECKING:
    from manyheads.contract import Algorithm

_FOLDER = Path(__file__).parent


def names() -> list[str]:
    """The methods' names: those of the files beside this one."""
    return sorted(file.stem for file in _FOLDER.glob("*.py") if file.stem not in ("__init__", Path(__file__).stem))


def describe(name: str) -> str:
    """The first line of a method's docstring."""
    return (ast.get_docstring(_class(name)) or "").partition("\n")[0]


def fields(name: str) -> dict[str, Any]:
    """A method's hyper-parameters and their defaults."""
    found = {}
    for line in _class(name).body:
        if (
            isinstance(line, ast.AnnAssign)
            and isinstance(line.target, ast.Name)
            and not _class_variable(line.annotation)
        ):
            found[line.target.id] = None if line.value is None else ast.literal_eval(line.value)
    return found


def load(name: str) -> type[Algorithm]:
    """The method's class.

    Raises:
        InputError: there is no such method.
    """
    found: type[Algorithm] = getattr(importlib.import_module(f"manyheads.algorithms.{_known(name)}"), _class(name).name)
    return found


def _known(name: str) -> str:
    if name not in names():
        raise InputError(f"algorithm.name: {unknown('method', name, names())}")
    return name


@cache
def _class(name: str) -> ast.ClassDef:
    """The one class of a method's file that is named like the file, without underscores and case."""
    tree = ast.parse((_FOLDER / f"{_known(name)}.py").read_text("utf-8"))
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    return next(node for node in classes if node.name.lower() == name.replace("_", ""))


def _class_variable(annotation: ast.expr) -> bool:
    return "ClassVar" in ast.unparse(annotation)
