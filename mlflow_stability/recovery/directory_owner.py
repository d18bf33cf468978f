"""Makes sure that one run alone keeps its checkpoints in a directory.

In: a directory and the name of a run. Out: the right to write there, or a refusal. Promised: two trainings that live
never share a directory, and a run never mixes its checkpoints with another's; a run that was killed takes its own
directory up again. Nothing is locked: the owner is named in a file that appears whole.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
from pathlib import Path
from typing import Any

from mlflow_stability.errors import CheckpointsRefused

OWNER = "owner.json"


class DirectoryOwner:
    """The right of one run, in this process, to a directory."""

    def __init__(self, directory: Path, run: str) -> None:
        self._directory = directory
        self._file = directory / OWNER
        self._mine = {
            "run": run,
            "pid": os.getpid(),
            "started": _start_of(os.getpid()),
            "host": socket.gethostname(),
        }

    def take(self, holds_checkpoints: bool) -> None:
        """Take the directory, or refuse to."""
        fresh = self._directory / f".{OWNER}-{os.getpid()}"
        fresh.write_text(json.dumps(self._mine))
        try:
            try:
                os.link(fresh, self._file)
            except OSError:  # there is an owner, or a file system without links
                self._refuse_unless_ours(_read(self._file), holds_checkpoints)
                fresh.replace(self._file)
        finally:
            fresh.unlink(missing_ok=True)
        if not self.holds():
            raise self._refusal(_read(self._file), "is taken by")

    def holds(self) -> bool:
        """Whether it is still ours."""
        return _read(self._file) == self._mine

    def release(self) -> None:
        """Leave the name of the run, and no process."""
        if self.holds():
            fresh = self._directory / f".{OWNER}-{os.getpid()}"
            fresh.write_text(json.dumps({**self._mine, "pid": 0}))
            fresh.replace(self._file)

    def _refuse_unless_ours(self, owner: dict[str, Any], holds_checkpoints: bool) -> None:
        if _lives(owner) and owner != self._mine:
            raise self._refusal(owner, "is in use by")
        if owner and owner.get("run") != self._mine["run"] and holds_checkpoints:
            raise self._refusal(owner, "holds the checkpoints of")

    def _refusal(self, owner: dict[str, Any], verb: str) -> CheckpointsRefused:
        who = f"process {owner.get('pid')} on {owner.get('host')}" if owner.get("pid") else "which has ended"
        return CheckpointsRefused(
            f"{self._directory} {verb} run {owner.get('run')} ({who}). This run writes no checkpoints. "
            "Give each run a directory of its own."
        )


def _read(file: Path) -> dict[str, Any]:
    """What an owner file says; nothing where there is none."""
    try:
        said = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return {}
    return said if isinstance(said, dict) else {}


def _lives(owner: dict[str, Any]) -> bool:
    """Whether the process that an owner file names is still there; of another machine's, nothing is known."""
    pid = int(owner.get("pid", 0))
    return pid > 0 and owner.get("host") == socket.gethostname() and _start_of(pid) == owner.get("started")


def _start_of(pid: int) -> str:
    """When a process began, as the system words it; empty where there is no such process."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        if Path("/proc/self/stat").exists():
            return ""
        command = ["ps", "-o", "lstart=", "-p", str(pid)]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    fields = stat.rpartition(")")[2].split()
    return "" if fields[0] in "ZX" else f"{boot} {fields[19]}"  # killed, and only not yet buried by its parent
