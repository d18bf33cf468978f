"""Tells whether the system has killed something for want of memory since we began to watch."""

from __future__ import annotations

import re
from pathlib import Path

_COUNT = re.compile(r"^oom_kill (\d+)", re.MULTILINE)


class MemoryWatch:
    """Counts the kills in our own cgroup, which training shares; where there is none, those of the whole system."""

    def __init__(self) -> None:
        self._page = next((page for page in _pages() if _count(page) is not None), None)
        self._before = _count(self._page) or 0

    def has_killed(self) -> bool:
        """Whether the count has risen."""
        return (_count(self._page) or 0) > self._before


def _pages() -> list[Path]:
    try:
        mine = Path("/proc/self/cgroup").read_text()
    except OSError:
        return []
    pages = []
    for line in mine.splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            pages.append(Path("/sys/fs/cgroup" + path) / "memory.events")
        elif "memory" in controllers.split(","):
            pages.append(Path("/sys/fs/cgroup/memory" + path) / "memory.oom_control")
    return [*pages, Path("/proc/vmstat")]


def _count(page: Path | None) -> int | None:
    if page is None:
        return None
    try:
        found = _COUNT.search(page.read_text())
    except OSError:
        return None
    return int(found[1]) if found else None
