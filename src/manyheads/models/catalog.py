"""What models there are: the public functions of ``zoo.py``, read from its source without importing torch."""

import ast
from functools import cache
from pathlib import Path
from typing import Any, Final

from manyheads.errors import InputError, unknown


@cache
def _functions() -> dict[str, ast.FunctionDef]:
    tree = ast.parse(Path(__file__).with_name("zoo.py").read_text(encoding="utf-8"))
    found = [node for node in tree.body if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")]
    return {node.name: node for node in sorted(found, key=lambda node: node.name)}


def _function(name: str) -> ast.FunctionDef:
    if name not in _functions():
        raise InputError(unknown("model", name, _functions()))
    return _functions()[name]


def names() -> tuple[str, ...]:
    """The names of the built-in models, sorted."""
    return tuple(_functions())


def describe(name: str) -> str:
    """One line about a built-in model. Raises InputError when there is no such model."""
    return (ast.get_docstring(_function(name)) or "").partition("\n")[0]


def options(name: str) -> dict[str, Any]:
    """The options of a built-in model with their defaults. Raises InputError when there is no such model."""
    arguments = _function(name).args
    pairs = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    return {argument.arg: ast.literal_eval(default) for argument, default in pairs if default is not None}


MODELS: Final = {name: describe(name) for name in names()}
