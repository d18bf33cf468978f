"""What `pytest` runs by default: all tests but slow and fault ones, in one worker for each core.

Options that are given win over these: `-m`, `-n`, `--dist`. A file or a test that is named runs whatever its markers
are, and in this process, where a debugger and a breakpoint work. A folder that is named runs as the whole suite does.
Temporary directories are in memory where there is room: SQLite waits for the disk at each commit.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

QUICK = "not slow and not fault"
MOST_WORKERS = 8
"""Each has a server and databases of its own."""
MEMORY_DISK = Path("/dev/shm")
ROOM = 4 * 2**30
"""Bytes that must be free on a disk in memory for the temporary directories of a run."""

OWN_SELECTION = ("lf", "failedfirst", "stepwise", "usepdb", "trace", "collectonly")
"""Options of pytest with which a run is about tests of an earlier one, or about a debugger."""


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config, args: list[str]) -> None:
    # A worker is started with the arguments of its controller: it comes to the same selection here.
    if not early_config.known_args_namespace.basetemp:
        _keep_temporary_directories_in_memory()
    given = early_config.known_args_namespace
    if not _only_folders(given.file_or_dir) or any(getattr(given, name, False) for name in OWN_SELECTION):
        return
    args[:0] = ["-m", QUICK]
    if early_config.pluginmanager.hasplugin("xdist"):
        args[:0] = ["-n", str(workers()), "--dist", "loadfile"]


def workers() -> int:
    """One for each core, and two at least: much of a test is waiting for processes."""
    return min(max(os.cpu_count() or 1, 2), MOST_WORKERS)


def _only_folders(named: Sequence[str]) -> bool:
    return all(Path(item).is_dir() for item in named)


def _keep_temporary_directories_in_memory() -> None:
    if os.access(MEMORY_DISK, os.W_OK) and shutil.disk_usage(MEMORY_DISK).free > ROOM:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY_DISK))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with files that have slow tests: one that came last would keep one worker busy, and the others idle."""
    if config.pluginmanager.hasplugin("randomly"):  # a random order was asked for
        return
    slow: Counter[Path] = Counter(item.path for item in items if item.get_closest_marker("slow"))
    items.sort(key=lambda item: -slow[item.path])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if config.option.markexpr == QUICK:
        terminalreporter.line(
            "Slow tests and fault tests were left out: `pytest -m ''` runs them all, `-m slow` these."
        )
