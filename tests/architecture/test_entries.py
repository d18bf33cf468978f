"""Other rooms import what a sub-package exports, not its insides; what is left of the latter may only become less."""

from __future__ import annotations

import ast
from functools import cache

from architecture.repository import PACKAGE, nodes_of, python_files

INNER_IMPORTS = 110
"""So many imports reach into a sub-package of another room; lower it with each that is taken away."""
WITHOUT_ENTRY = 1
"""So many sub-packages that other rooms import from export nothing."""

SUB_PACKAGES = {
    ".".join((PACKAGE.name, *path.parent.relative_to(PACKAGE).parts)): path
    for path in PACKAGE.rglob("__init__.py")
    if len(path.relative_to(PACKAGE).parts) > 2 and path.relative_to(PACKAGE).parts[0] != "kinds"
}
"""All but those of `kinds`, where each file is one kind of finding and is imported by its name."""


@cache
def inner_imports() -> list[str]:
    """The sub-package that is reached into, for each name that is imported so."""
    found = []
    for path in python_files(PACKAGE):
        room = path.relative_to(PACKAGE).parts[0]
        for node in nodes_of(path):
            if isinstance(node, ast.ImportFrom) and node.module is not None:
                package = node.module.rpartition(".")[0]
                if package in SUB_PACKAGES and package.split(".")[1] != room:
                    found += [package] * len(node.names)
    return found


def test_ever_fewer_imports_reach_into_a_sub_package_of_another_room() -> None:
    assert len(inner_imports()) <= INNER_IMPORTS


def test_ever_fewer_sub_packages_that_others_use_have_no_exported_entry() -> None:
    without = {each for each in inner_imports() if "__all__" not in SUB_PACKAGES[each].read_text(encoding="utf-8")}
    assert len(without) <= WITHOUT_ENTRY
