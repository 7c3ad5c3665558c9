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
    """The methods' names: those of the files beside this one that do not begin with an underscore."""
    return sorted(file.stem for file in _FOLDER.glob("[!_]*.py") if file.stem != Path(__file__).stem)


def describe(name: str) -> str:
    """The first line of a method's docstring."""
    return (ast.get_docstring(_class(name)) or "").partition("\n")[0]


def fields(name: str) -> dict[str, Any]:
    """A method's hyper-parameters and their defaults, those of methods that it extends among them."""
    found: dict[str, Any] = {}
    for base in _class(name).bases:
        if (parent := _method_of(ast.unparse(base))) is not None:
            found |= fields(parent)
    for line in _class(name).body:
        if isinstance(line, ast.AnnAssign) and "ClassVar" not in ast.unparse(line.annotation):
            field = ast.unparse(line.target)
            try:
                found[field] = ast.literal_eval(line.value or ast.Name("nothing"))
            except ValueError:
                raise _broken(name, f"the default of {field} must be a plain value, such as 0.1 or None") from None
    return found


def load(name: str) -> type[Algorithm]:
    """The method's class.

    Raises:
        InputError: there is no such method, or its file is not one of a method.
    """
    found: type[Algorithm] = getattr(importlib.import_module(f"manyheads.algorithms.{_known(name)}"), _class(name).name)
    return found


def _known(name: str) -> str:
    if name not in names():
        raise InputError(f"algorithm.name: {unknown('method', name, names())}")
    return name


@cache
def _class(name: str) -> ast.ClassDef:
    """The class of a method's file that is named like the file, without underscores and case."""
    try:
        tree = ast.parse((_FOLDER / f"{_known(name)}.py").read_text("utf-8"))
    except SyntaxError as error:
        raise _broken(name, f"line {error.lineno}: {error.msg}") from None
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    for node in classes:
        if node.name.lower() == name.replace("_", "").lower():
            if not any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list):
                raise _broken(name, f"class {node.name} needs the decorator @dataclass(frozen=True)")
            return node
    have = ", ".join(node.name for node in classes) or "none"
    raise _broken(name, f"no class is named like the file, such as {name.title().replace('_', '')}; it has {have}")


def _broken(name: str, why: str) -> InputError:
    return InputError(f"method {name!r} ({_FOLDER / name}.py): {why}")


def _method_of(class_name: str) -> str | None:
    """The method whose class has this name, if there is one."""
    return next((name for name in names() if name.replace("_", "") == class_name.lower()), None)
