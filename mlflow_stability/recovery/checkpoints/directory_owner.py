"""Makes sure that one run alone keeps its checkpoints in a directory.

In: a directory and the name of a run. Out: the right to write there, or a refusal. Guarantees: two trainings that live
never share a directory, and a run never mixes its checkpoints with another's; a run that was killed takes its own
directory up again. Nothing is locked: the owner is named in a file that appears whole.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from mlflow_stability.errors import CheckpointsRefused
from mlflow_stability.journal.process_identity import ProcessStatus, identity_from, life_of, own_identity

OWNER = "owner.json"


class DirectoryOwner:
    """The right of one run, in this process, to a directory."""

    def __init__(self, directory: Path, run: str) -> None:
        self._directory = directory
        self._file = directory / OWNER
        self._mine = {"run": run, **own_identity().said()}

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
            f"{self._directory} {verb} run {owner.get('run')} ({who}). This run writes no checkpoints. Give "
            "each run its own directory."
        )


def _read(file: Path) -> dict[str, Any]:
    """What an owner file says; nothing where there is none."""
    try:
        said = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return {}
    return said if isinstance(said, dict) else {}


def _lives(owner: dict[str, Any]) -> bool:
    """Whether the process that an owner file names is certainly there; of another machine's, nothing is known."""
    process = identity_from(owner)
    return process is not None and life_of(process) is ProcessStatus.LIVES
