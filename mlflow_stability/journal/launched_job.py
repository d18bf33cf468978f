"""The job of a launcher that this process is a part of: one that restarts its processes when one of them dies.

In: the environment, as `torchrun` sets it. Out: a name of the job that all its attempts on this machine have, and no
other job; the folders that its attempts have marked with it. Guarantees: nobody is asked but the system.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from mlflow_stability.journal.process_identity import identity_of

JOB_NAME_LENGTH = 32
MARK = "job"
"""The file that says which job a folder belongs to."""


@dataclass(frozen=True, slots=True)
class LaunchedJob:
    """A job of torchrun."""

    name: str
    restarts: int
    """How often its processes were started again."""
    most_restarts: int
    """`--max-restarts`."""

    @property
    def can_restart(self) -> bool:
        """Whether there is more than one attempt, or may be."""
        return self.most_restarts > 0


def launched_job() -> LaunchedJob | None:
    """The job of this process; None where no launcher has started it that restarts.

    A job is that of the launcher's own process: several jobs may have the same `--rdzv-id`, one after the other.
    """
    try:
        identifier = os.environ["TORCHELASTIC_RUN_ID"]
        restarts, most = (int(os.environ[f"TORCHELASTIC_{each}"]) for each in ("RESTART_COUNT", "MAX_RESTARTS"))
    except (KeyError, ValueError):
        return None
    launcher = identity_of(os.getppid())
    told = "\n".join((identifier, launcher.host, launcher.boot, str(launcher.pid), launcher.start))
    return LaunchedJob(hashlib.sha256(told.encode()).hexdigest()[:JOB_NAME_LENGTH], restarts, most)


def mark_folder(folder: Path, job: LaunchedJob) -> None:
    """Say that what is kept in a folder belongs to this job."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with contextlib.suppress(OSError):  # a full disk is told of by what needs the room
        (folder / MARK).touch(mode=0o600)
        (folder / MARK).write_text(job.name)


def marked_folders(directory: Path, job: LaunchedJob) -> list[Path]:
    """The folders in a directory that belong to this job, those of its last attempt first."""
    found = []
    for mark in directory.glob(f"*/{MARK}"):
        with contextlib.suppress(OSError):  # removed meanwhile
            if mark.read_text() == job.name:
                found.append((mark.stat().st_mtime, mark.parent))
    return [folder for _, folder in sorted(found, reverse=True)]
