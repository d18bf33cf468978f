"""One training of the zoo in this process, bare or looked after, and what came of it.

In: which failure, its twin or itself, the seed, and the arguments of ``autolog()``, or None for bare training. Out:
losses, and the events that the journal of this process holds. The training knows nothing of it. Give each trial a
process of its own.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from zoo.catalog import failure_named

import mlflow_stability
from mlflow_stability.demo.training_loop import Notes
from mlflow_stability.journal.journal import JOURNAL as JOURNAL
from mlflow_stability.journal.journal import JournalFollower
from mlflow_stability.journal.layout import recording_folders, session_folders
from mlflow_stability.vocabulary.result import Finding


@dataclass(frozen=True, slots=True)
class Trial:
    """What is to be tried."""

    failure: str
    ill: bool
    seed: int
    autolog: tuple[tuple[str, Any], ...] | None = None
    """The arguments of ``autolog()``; None: without us."""


@dataclass(slots=True)
class Result:
    """What came of it."""

    notes: Notes = field(default_factory=Notes)
    events: list[Finding] = field(default_factory=list)
    error: str = ""
    """The exception that ended the training, if one did."""
    seconds: float = 0.0


def run(trial: Trial, folder: Path) -> Result:
    """Train in this process; what is recorded goes into the folder, and nowhere else."""
    folder.mkdir(parents=True)
    os.chdir(folder)
    torch.set_num_threads(1)
    os.environ["MLFLOW_TRACKING_URI"] = f"sqlite:///{folder / 'mlflow.db'}"
    journals = folder / "journals"
    if trial.autolog is not None:
        options = mlflow_stability.Options(journal_dir=journals)
        mlflow_stability.autolog(offline=True, silent=True, options=options, **dict(trial.autolog))
    result, began = Result(), time.perf_counter()
    try:
        failure_named(trial.failure).train(trial.seed, ill=trial.ill, notes=result.notes)
    except Exception as error:  # whatever the training dies of is a result
        result.error = f"{type(error).__name__}: {error}"
    result.seconds = time.perf_counter() - began
    if trial.autolog is not None:
        mlflow_stability.autolog(disable=True)
        result.events = events_in(journals)
    return result


def events_in(journals: Path) -> list[Finding]:
    """Everything that was printed."""
    recordings = [folder for session in session_folders(journals) for folder in recording_folders(session)]
    entries = [entry for recording in recordings for entry in JournalFollower(recording / JOURNAL).read()]
    return [entry.record for entry in entries if isinstance(entry.record, Finding)]
