"""Tells whether the process that trained is still there.

A pid alone does not say so, for it can be taken by another process: the time of its start is asked too.
"""

from __future__ import annotations

import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from mlflow_stability.journal.layout import recording_folders
from mlflow_stability.journal.writer import NAME as JOURNAL
from mlflow_stability.vocabulary.milestone import Opening

_CLOCK_SLACK = 2.0
_SILENT_SECONDS = 60.0  # after which a process on another machine, which cannot be asked, counts as gone


@dataclass(frozen=True, slots=True)
class TrainingProcess:
    """The process that writes a journal."""

    pid: int
    started: float
    """When it was started; 0: not known."""
    host: str
    folder: Path
    """Its session."""

    def alive(self) -> bool:
        """Whether it can still append to its journal."""
        if self.host != socket.gethostname():
            return time.time() - self._last_written() < _SILENT_SECONDS
        return process_lives(self.pid, self.started)

    def command(self) -> list[str]:
        """How it was started; empty if it is gone or on another machine."""
        try:
            return psutil.Process(self.pid).cmdline() if self.alive() else []
        except psutil.Error:
            return []

    def _last_written(self) -> float:
        journals = [folder / JOURNAL for folder in recording_folders(self.folder)]
        return max((journal.stat().st_mtime for journal in journals), default=0.0)


def process_lives(pid: int, started: float) -> bool:
    """Whether this very process runs on this machine; one that has ended and was not yet waited for does not."""
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        return started <= 0 or abs(process.create_time() - started) <= _CLOCK_SLACK
    except psutil.AccessDenied:
        return True
    except psutil.NoSuchProcess:
        return False


def process_of(folder: Path, opening: Opening | None) -> TrainingProcess:
    """The process of a session: from its first record, or, before there is one, from the session's name."""
    if opening is not None:
        return TrainingProcess(opening.pid, opening.process_started, opening.host, folder)
    named = folder.name.split("-")
    pid = int(named[2]) if len(named) > 2 and named[2].isdigit() else 0
    started = 0.0
    if pid and pid == os.getppid():
        started = psutil.Process(pid).create_time()
    return TrainingProcess(pid, started, socket.gethostname(), folder)
