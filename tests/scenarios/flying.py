"""Trainings in this process under the autopilot, and what their journal says afterwards."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import mlflow_stability
from mlflow_stability import Options
from mlflow_stability.journal.journal import JOURNAL as JOURNAL
from mlflow_stability.journal.journal import Record, read_journal
from mlflow_stability.journal.layout import recording_folders, session_folders
from mlflow_stability.session.session import Session
from mlflow_stability.vocabulary.result import Finding
from mlflow_stability.vocabulary.rollback_policy import RollbackPolicy

QUICK = RollbackPolicy(snapshot_every=20, snapshot_share=1.0, healthy_after=10, rewind=20, easing_steps=40)
"""For trainings of a few hundred steps."""


@dataclass(slots=True)
class Flown:
    session: Session
    records: list[Record] = field(default_factory=list)
    """Of the last recording, once it is over."""
    recordings: list[list[Record]] = field(default_factory=list)
    """All of them, each like ``records``: trainings that follow one upon the other have one each."""

    def events(self, kind: str = "") -> list[Finding]:
        return [record for record in self.records if isinstance(record, Finding) and kind in ("", record.kind)]


NO_OPTIONS = Options()


@contextmanager
def flying(folder: Path, *, strict: bool = True, options: Options = NO_OPTIONS, **settings: Any) -> Iterator[Flown]:
    """Nothing is delivered: the journal is what is looked at."""
    journals = folder / "journals"
    mlflow_stability.autolog(
        offline=True, silent=True, strict=strict, options=replace(options, journal_dir=journals), **settings
    )
    session = mlflow_stability.current_session()
    assert session is not None
    flown = Flown(session)
    try:
        yield flown
    finally:
        mlflow_stability.autolog(disable=True)
        for value in (folder for first in session_folders(journals) for folder in recording_folders(first)):
            flown.records = list(read_journal(value / JOURNAL))
            flown.recordings.append(flown.records)
        for first in session_folders(journals):
            if first.name not in ("checkpoints", "batches"):
                shutil.rmtree(first)
