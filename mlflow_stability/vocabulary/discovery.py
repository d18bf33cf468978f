"""Finds what the modules of a package define, so that a file is all that has to be added.

In: a package, and what to look for: a type of constant, or a base class. Out: all there are, module by module in the
order of their names. Guarantees: what a module only imports is not taken for its own; nothing else is loaded.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator
from importlib import import_module
from inspect import isabstract
from types import ModuleType
from typing import TypeVar

_T = TypeVar("_T")


def modules_of(package: str) -> Iterator[ModuleType]:
    """Import the modules of a package and of the packages in it, in the order of their names."""
    for each in pkgutil.iter_modules(import_module(package).__path__, f"{package}."):
        if each.ispkg:
            yield from modules_of(each.name)
        else:
            yield import_module(each.name)


def constants_of(package: str, name: str, wanted: type[_T]) -> tuple[_T, ...]:
    """What the modules of a package have under this name: ``FORMAT``, ``CAUSE``."""
    found = (getattr(module, name, None) for module in modules_of(package))
    return tuple(each for each in found if isinstance(each, wanted))


def subclasses_in(package: str, parent: type[_T]) -> tuple[type[_T], ...]:
    """The classes that the modules of a package derive from another, without those that leave something open."""
    return tuple(
        each
        for module in modules_of(package)
        for each in vars(module).values()
        if isinstance(each, type) and issubclass(each, parent) and each.__module__ == module.__name__
        if not isabstract(each)
    )
