"""Says at the end where the minutes of a test run went: by folder, and by marker."""

from __future__ import annotations

from collections import defaultdict
from pathlib import PurePosixPath

import pytest

SECONDS: dict[str, float] = defaultdict(float)
COUNT: dict[str, set[str]] = defaultdict(set)
MARKERS: list[str] = []


def pytest_configure(config: pytest.Config) -> None:
    ours = config.inipath and config.inipath.read_text(encoding="utf-8")
    names = [line.partition(":")[0].partition("(")[0].strip() for line in config.getini("markers")]
    MARKERS.extend(name for name in names if ours and f'"{name}:' in ours)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    folder = PurePosixPath(report.nodeid.partition("::")[0]).parts
    names = [f"tests/{folder[1]}" if len(folder) > 2 else "tests"]
    names += [f"-m {marker}" for marker in MARKERS if marker in report.keywords]
    for name in names:
        SECONDS[name] += report.duration
        COUNT[name].add(report.nodeid)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not SECONDS:
        return
    terminalreporter.section("minutes")
    for name in sorted(SECONDS, key=lambda second: (second.startswith("-m"), -SECONDS[second])):
        terminalreporter.line(f"{SECONDS[name] / 60:6.1f} min  {len(COUNT[name]):4d} tests  {name}")
