"""Sets the clock of a process alone."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

HOUR = 3600


def set_clock(pid: int, seconds: int, folder: Path) -> None:
    """What a step of the clock changes in `/proc`, for a training and its courier alone: when the system started.

    From it the start of every process is computed as a time of the wall clock.
    """
    page = Path("/proc/stat").read_text()
    moved = re.sub(r"(?m)^btime (\d+)$", lambda match: f"btime {int(match[1]) + seconds}", page)
    assert (moved != page) == bool(seconds)
    file = folder / "stat"
    file.write_text(moved)
    subprocess.run(["nsenter", "-m", "-t", str(pid), "mount", "--bind", str(file), "/proc/stat"], check=True)
