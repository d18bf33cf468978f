"""Runs tests with the default of one threshold changed by a quarter, and says which of them notice.

python tests/kinds/changed_thresholds.py                      for each threshold that no text mentions
python tests/kinds/changed_thresholds.py Plateau.errors       for this threshold
python tests/kinds/changed_thresholds.py Plateau.errors=NODE  whether this test notices
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # as pytest's pythonpath does
    sys.path.insert(0, str(Path(__file__).parents[1]))

import pytest
from architecture.repository import ROOT

from mlflow_stability.kinds.catalog import RULES, TYPES

CLASSES: dict[str, type[Any]] = {item.__name__: item for item in (*TYPES, *RULES) if fields(item)}
NOT_ASKED = {
    "test_documented_thresholds.py",
    "test_catalog.py",
    "test_own_thresholds.py",
    "test_sensitivity.py",
    "test_live_is_replay.py",
}
"""Tests of all classes, which would notice any change."""


def changed(value: Any) -> list[Any]:
    """A threshold a quarter higher, and a quarter lower."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, tuple):
        return [tuple(1.25 * item for item in value), tuple(0.75 * item for item in value)]
    if isinstance(value, int):
        return [max(value + 1, round(1.25 * value)), min(value - 1, round(0.75 * value))]
    return [1.25 * value, 0.75 * value]


@contextlib.contextmanager
def default_of(cls: type[Any], name: str, value: Any) -> Iterator[None]:
    """Make this value the default of a field while tests run."""
    made = cls.__init__
    before = made.__defaults__
    at = [field.name for field in fields(cls)].index(name)
    made.__defaults__ = (*before[:at], value, *before[at + 1 :])
    try:
        yield
    finally:
        made.__defaults__ = before


class _Failed:
    """Collects the tests that failed."""

    def __init__(self) -> None:
        self.nodes: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.nodes.append(report.nodeid)


def failing(arguments: list[str]) -> str:
    """The first of these tests that fails; empty where none does."""
    failed = _Failed()
    for name in [name for name, module in sys.modules.items() if _is_test(module)]:
        del sys.modules[name]  # what a module made of the default when it was imported must be made again
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        pytest.main(["-q", "-x", "-p", "no:cacheprovider", *arguments], plugins=[failed])
    return next(iter(failed.nodes), "")


def _is_test(module: object) -> bool:
    path = getattr(module, "__file__", None) or ""
    return path.startswith(str(ROOT / "tests")) and Path(path).name.startswith("test_")


def noticed_by(cls: type[Any], name: str, arguments: list[str]) -> str:
    """The test that fails with the threshold a quarter higher or lower; empty where none does."""
    usual = next(field.default for field in fields(cls) if field.name == name)
    for value in changed(usual):
        with default_of(cls, name, value):
            node = failing(arguments)
        if node:
            return node
    return ""


def tests_of(cls: type[Any]) -> list[str]:
    """The test files of a class: first those named after it, then those that name it or its kind."""
    module = cls.__module__.rpartition(".")[2]
    paths = sorted((ROOT / "tests" / "kinds").rglob("test_*.py"))
    files = {path: path.read_text(encoding="utf-8") for path in paths}
    result = [path for path, text in files.items() if re.search(rf"\b{cls.__name__}\b|\"{cls.kind}\"", text)]
    chosen = [path for path in result if path.name not in NOT_ASKED]
    return [
        str(path)
        for path in sorted(chosen, key=lambda path: (module not in path.stem, cls.__name__ not in files[path]))
    ]


def main(arguments: list[str]) -> None:
    """One process for each class, so that nothing that a test keeps is there for the next."""
    os.chdir(ROOT)
    if not arguments:
        from kinds.test_documented_thresholds import unmentioned

        arguments = unmentioned()
    if len({argument.partition(".")[0] for argument in arguments}) > 1:
        for name in dict.fromkeys(argument.partition(".")[0] for argument in arguments):
            mine = [argument for argument in arguments if argument.partition(".")[0] == name]
            subprocess.run([sys.executable, __file__, *mine], check=True)
        return
    for argument in arguments:
        field, _, node = argument.partition("=")
        cls = CLASSES[field.partition(".")[0]]
        result = noticed_by(cls, field.partition(".")[2], [node] if node else tests_of(cls))
        print(f"{field}\t{result}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
