from __future__ import annotations

import ast
from pathlib import Path

import pytest
from architecture.repository import PACKAGE, ROOT, nodes_of, python_files, shipped_files, tree_of

LONGEST_IN_PACKAGE, LONGEST_IN_TESTS = 500, 600
SAY_NOTHING = {"common", "core", "handler", "helpers", "misc", "util", "utils"}
TO_THE_HOST = {"cpu", "item", "numpy", "tolist"}


def lines_of(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def test_no_file_of_the_package_is_longer_than_500_lines() -> None:
    assert [path for path in python_files(PACKAGE) if lines_of(path) > LONGEST_IN_PACKAGE] == []


def test_no_file_of_the_tests_is_longer_than_600_lines() -> None:
    assert [path for path in python_files(ROOT / "tests") if lines_of(path) > LONGEST_IN_TESTS] == []


@pytest.mark.parametrize("folder", ["mlflow_stability", "tests"])
def test_no_file_has_a_name_that_says_nothing(folder: str) -> None:
    for path in python_files(ROOT / folder):
        assert not SAY_NOTHING & set(path.with_suffix("").relative_to(ROOT).parts), path


def test_every_file_of_the_package_says_what_it_is_for() -> None:
    for path in python_files(PACKAGE):
        docstring = ast.get_docstring(tree_of(path))
        assert docstring, path
        assert docstring.splitlines()[0].endswith((".", ":", ",")) or len(docstring.splitlines()[0]) > 60, path


def test_an_init_holds_imports_and_names_alone() -> None:
    for path in python_files(PACKAGE):
        if path.name == "__init__.py" and path.parent != PACKAGE:
            kinds = {type(node) for node in tree_of(path).body}
            assert kinds <= {ast.Expr, ast.Import, ast.ImportFrom, ast.Assign}, path


def test_of_the_probes_only_readback_brings_values_to_the_host() -> None:
    for path in python_files(PACKAGE / "probes"):
        called = {
            node.func.attr
            for node in nodes_of(path)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        }
        assert path.name == "readback.py" or not called & TO_THE_HOST, path


def test_the_library_prints_nothing_and_swallows_nothing() -> None:
    for path in python_files(PACKAGE):
        for node in nodes_of(path):
            assert not (isinstance(node, ast.Call) and getattr(node.func, "id", "") == "print"), path
            if isinstance(node, ast.ExceptHandler):
                only_pass = len(node.body) == 1 and isinstance(node.body[0], ast.Pass)
                assert not only_pass, f"{path}:{node.lineno}"
                assert node.type is not None, f"{path}:{node.lineno}"


def test_the_top_of_the_repository_holds_what_the_map_says() -> None:
    tops = {name.partition("/")[0] for name in shipped_files()}
    texts = {"LICENSE", "README.md", "examples", "mlflow_stability", "mlruns_fixtures", "pyproject.toml", "tests"}
    assert {name for name in tops if not name.startswith(".")} <= texts
