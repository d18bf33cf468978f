"""Find what the modules of a package define, so that adding a file is enough, and the notes on it."""

from __future__ import annotations

import ast
import pkgutil
from collections.abc import Iterator, Sequence
from importlib import import_module
from inspect import isabstract
from types import ModuleType
from typing import TypeVar

from mlflow_stability.vocabulary.text.phrases import sentence

_T = TypeVar("_T")


def modules_of(package: str) -> Iterator[ModuleType]:
    """Import the modules of a package, in the order of their names."""
    for module in pkgutil.iter_modules(import_module(package).__path__, f"{package}."):
        yield import_module(module.name)


def constants_of(package: str, name: str, wanted: type[_T]) -> tuple[_T, ...]:
    """Return the constants of this name and type in the modules of a package, such as all ``FORMAT``."""
    constants = (getattr(module, name, None) for module in modules_of(package))
    return tuple(constant for constant in constants if isinstance(constant, wanted))


def subclasses_in(package: str, parent: type[_T]) -> tuple[type[_T], ...]:
    """Return the concrete subclasses that the modules of a package define; imported ones are left out."""
    return tuple(
        value
        for module in modules_of(package)
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, parent) and value.__module__ == module.__name__
        if not isabstract(value)
    )


def note_of(statement: ast.stmt, below: ast.stmt, lines: Sequence[str]) -> str:
    """Return the note behind a constant or a field of these lines, as a sentence, or else the text below it."""
    behind = lines[(statement.end_lineno or statement.lineno) - 1].partition("  # ")[2]
    if behind:
        return sentence(behind)
    if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) and isinstance(below.value.value, str):
        return " ".join(below.value.value.split())
    return ""
