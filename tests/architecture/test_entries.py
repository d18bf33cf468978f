"""A name is imported from the module that defines it; few packages list names of others."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from architecture.repository import PACKAGE, nodes_of, python_files

LISTS = {"__init__.py", "kinds/__init__.py", "vocabulary/result/__init__.py"}
"""What users import, and the results that nearly every room handles."""


def defined_in(path: Path) -> set[str]:
    """The names that a module makes itself, and the submodules of a package."""
    names = {child.stem for child in path.parent.iterdir()} if path.name == "__init__.py" else set()
    for node in nodes_of(path):
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names


def module_file(name: str) -> Path:
    path = PACKAGE.parent.joinpath(*name.split("."))
    return path / "__init__.py" if (path / "__init__.py").exists() else path.with_suffix(".py")


def test_only_these_packages_list_names_of_other_modules() -> None:
    lists = {
        path.relative_to(PACKAGE).as_posix()
        for path in python_files(PACKAGE)
        if path.name == "__init__.py" and f"from {PACKAGE.name}." in path.read_text(encoding="utf-8")
    }
    assert lists == LISTS


@pytest.mark.parametrize("room", sorted(path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()))
def test_a_name_is_imported_from_the_module_that_defines_it(room: str) -> None:
    borrowed = []
    for path in python_files(PACKAGE / room):
        for node in nodes_of(path):
            if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith(f"{PACKAGE.name}."):
                continue
            source = module_file(node.module or "")
            if source.relative_to(PACKAGE).as_posix() not in LISTS:
                missing = {alias.name for alias in node.names} - defined_in(source)
                borrowed += [f"{path.relative_to(PACKAGE)}: {name} of {node.module}" for name in sorted(missing)]
    assert not borrowed, "import these from the modules that define them"
