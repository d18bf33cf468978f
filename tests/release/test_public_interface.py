from __future__ import annotations

import ast
import inspect
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path

import pytest
from architecture.repository import PACKAGE, tree_of
from release.check_wheel import PUBLIC_INTERFACE, make_environment

import mlflow_stability
from mlflow_stability import errors, kinds


def used_names() -> set[str]:
    """Names, attributes and keyword arguments in the script; an import alone is no use."""
    nodes = list(ast.walk(tree_of(PUBLIC_INTERFACE)))
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    attributes = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    return names | attributes | {node.arg for node in nodes if isinstance(node, ast.keyword) and node.arg}


def parts(name: str) -> Iterator[str]:
    """Yield what users can write of a public name: fields, properties and methods, or arguments that have a name."""
    public = getattr(mlflow_stability, name)
    if is_dataclass(public):
        yield from (field.name for field in fields(public) if not field.name.startswith("_"))
        yield from (member for member in vars(public) if not member.startswith("_"))
    elif not inspect.isclass(public):
        parameters = inspect.signature(public).parameters.values()
        yield from (parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY)


@pytest.mark.parametrize("name", mlflow_stability.PUBLIC)
def test_the_script_uses_each_public_name_with_all_its_parts(name: str) -> None:
    assert {name, *parts(name)} - used_names() == set()


def test_the_script_uses_every_detector_and_every_error() -> None:
    raised = {name for name, item in vars(errors).items() if inspect.isclass(item)}
    unused = {*kinds.__all__, *raised} - used_names()
    assert not unused, f"use {sorted(unused)} in {PUBLIC_INTERFACE.name}"


@pytest.mark.slow
def test_strict_types_of_a_user_fit_the_installed_package(tmp_path: Path) -> None:
    python = make_environment(tmp_path / "venv")
    (site,) = tmp_path.glob("venv/lib/*/site-packages")
    (site / PACKAGE.name).symlink_to(PACKAGE)  # a link in site-packages is an installed package for mypy
    command = [sys.executable, "-m", "mypy", "--strict", "--python-executable", str(python), "--cache-dir", os.devnull]
    checked = subprocess.run(
        [*command, str(PUBLIC_INTERFACE)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
