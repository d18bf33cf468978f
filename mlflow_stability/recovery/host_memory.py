"""Knows how much of the host's memory is free, in a container too."""

from __future__ import annotations

import os
from pathlib import Path

_MEMORY = Path("/proc/meminfo")
_CONTAINER = Path("/sys/fs/cgroup")


def free_memory() -> int:
    """How many bytes this process may still take, as far as the system tells."""
    free = _available()
    try:
        limit = (_CONTAINER / "memory.max").read_text().strip()
        used = int((_CONTAINER / "memory.current").read_text())
        cached = _entry((_CONTAINER / "memory.stat").read_text(), "inactive_file")
    except OSError:  # no such container: the machine's memory is the limit
        return free
    return free if limit == "max" else min(free, max(0, int(limit) - used + cached))


def _available() -> int:
    try:
        return 1024 * _entry(_MEMORY.read_text(), "MemAvailable:")
    except OSError:  # not Linux; half of all there is is a safe guess
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def _entry(text: str, name: str) -> int:
    """The number in the line that begins with this name; 0 where there is none."""
    return next((int(line.split()[1]) for line in text.splitlines() if line.startswith(name + " ")), 0)
