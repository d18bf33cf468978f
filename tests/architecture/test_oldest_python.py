"""Python 3.10 is promised, and newer ones run the tests: nothing is taken from the standard library that it lacks."""

from __future__ import annotations

import ast
from collections.abc import Iterable

import pytest
from architecture.repository import PACKAGE, nodes_of, python_files

NEWER = {
    "contextlib": {"chdir"},
    "datetime": {"UTC"},
    "enum": {"EnumCheck", "FlagBoundary", "ReprEnum", "StrEnum", "global_enum", "member", "nonmember", "verify"},
    "hashlib": {"file_digest"},
    "inspect": {"getmembers_static", "markcoroutinefunction"},
    "itertools": {"batched"},
    "logging": {"getLevelNamesMapping"},
    "math": {"cbrt", "exp2", "sumprod"},
    "operator": {"call"},
    "typing": {"LiteralString", "Never", "NotRequired", "Required", "Self", "TypeVarTuple", "Unpack", "override"},
    "wsgiref.types": {"*"},
    "tomllib": {"*"},
}
BUILTINS = {"BaseExceptionGroup", "ExceptionGroup"}


def newer_names(nodes: Iterable[ast.AST]) -> set[str]:
    """The names in a file that Python 3.10 does not have."""
    seen = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            seen |= {name.name for name in node.names if "*" in NEWER.get(name.name, ())}
        elif isinstance(node, ast.ImportFrom):
            newer = NEWER.get(node.module or "", set())
            seen |= {f"{node.module}.{name.name}" for name in node.names if newer & {name.name, "*"}}
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.attr in NEWER.get(node.value.id, ()):
                seen.add(f"{node.value.id}.{node.attr}")
        elif isinstance(node, ast.Name) and node.id in BUILTINS:
            seen.add(node.id)
    return seen


def test_no_module_takes_what_the_oldest_python_lacks() -> None:
    assert {str(file): result for file in python_files(PACKAGE) if (result := newer_names(nodes_of(file)))} == {}


def test_types_of_fields_are_asked_for_in_one_function() -> None:
    """Elsewhere `get_type_hints(cls)` would raise in Python 3.10 where an attribute is a `ClassVar` without a type."""
    asking = [file.name for file in python_files(PACKAGE) if "get_type_hints" in file.read_text(encoding="utf-8")]
    assert asking == ["facts.py"]


@pytest.mark.parametrize(
    "line",
    ["from enum import StrEnum", "import enum; enum.StrEnum", "from datetime import UTC", "import tomllib"],
)
def test_newer_names_are_seen(line: str) -> None:
    assert newer_names(ast.walk(ast.parse(line)))
    older = "from enum import Enum; from datetime import datetime, timezone; import json"
    assert not newer_names(ast.walk(ast.parse(older)))
