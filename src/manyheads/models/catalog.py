"""What models there are, read from the source of ``zoo.py`` and ``resnet.py`` without importing torch."""

import ast
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Any, Final

from manyheads.errors import InputError, unknown

FILES: Final = ("zoo", "resnet")
GIVEN: Final = ("shape", "classes")  # keywords that come from the data, not from the config


@cache
def _functions() -> dict[str, tuple[str, ast.FunctionDef]]:
    """Public functions by name, with the module that they are in."""
    found: dict[str, tuple[str, ast.FunctionDef]] = {}
    for file in FILES:
        tree = ast.parse((resources.files("manyheads.models") / f"{file}.py").read_text(encoding="utf-8"))
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                found[node.name] = (file, node)
    return found


def _function(name: str) -> tuple[str, ast.FunctionDef]:
    if name not in _functions():
        raise InputError(unknown("model", name, _functions()))
    return _functions()[name]


def names() -> tuple[str, ...]:
    """Return the names of the built-in models, sorted."""
    return tuple(sorted(_functions()))


def describe(name: str) -> str:
    """Return one line about a built-in model.

    Raises:
        InputError: When there is no such model.
    """
    return (ast.get_docstring(_function(name)[1]) or "").partition("\n")[0]


def options(name: str) -> dict[str, Any]:
    """Return the options of a built-in model with their defaults.

    Raises:
        InputError: When there is no such model.
    """
    arguments = _function(name)[1].args
    pairs = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    return {arg.arg: ast.literal_eval(value) for arg, value in pairs if value is not None}


def module_of(name: str) -> str:
    """Return the importable name of the module that holds a built-in model.

    Raises:
        InputError: When there is no such model.
    """
    return f"manyheads.models.{_function(name)[0]}"


MODELS: Final = MappingProxyType({name: describe(name) for name in names()})
