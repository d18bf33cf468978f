"""Where things are in this repository, for tests that read it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "mlflow_stability"


def python_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*.py") if "__pycache__" not in path.parts)


def shipped_files() -> list[str]:
    """Every file of the repository that belongs there: what .gitignore names is left out. Works without git too."""
    patterns = [line.rstrip("/") for line in (ROOT / ".gitignore").read_text(encoding="utf-8").split()]

    def below(folder: Path) -> Iterator[Path]:
        for path in sorted(folder.iterdir()):
            if path.name == ".git" or any(fnmatch(path.name, pattern) for pattern in patterns):
                continue
            if path.is_dir():
                yield from below(path)
            else:
                yield path

    return [str(path.relative_to(ROOT)) for path in below(ROOT)]


@cache
def tree_of(path: Path) -> ast.Module:
    """The syntax tree of a file of the package, read once in each process that runs tests."""
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


@cache
def nodes_of(path: Path) -> list[ast.AST]:
    """All nodes of the tree, as `ast.walk` yields them."""
    return list(ast.walk(tree_of(path)))


def imported_names(path: Path) -> Iterator[str]:
    """The modules that a file imports, wherever in it."""
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
