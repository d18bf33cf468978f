"""One training of this folder in this process, bare, watched, or with rollbacks, and what was recorded of it."""

from __future__ import annotations

import hashlib
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from unittest.mock import patch

from scenarios.flown_history import recorded_in
from scenarios.flying import flying
from zoo.judged import OF_THE_MACHINE
from zoo.tutorials.tutorial import Outcome, Tutorial

from mlflow_stability.diagnosis.diagnose import diagnosis_of
from mlflow_stability.journal.journal import Record
from mlflow_stability.session.courier_link import CourierLink
from mlflow_stability.vocabulary.result import Finding, Severity

Mode = Literal["bare", "watched", "rollback"]
MODES: tuple[Mode, ...] = ("bare", "watched", "rollback")
ACTIONS = ("rollback", "step_skipped", "give_up")


@dataclass(slots=True)
class Trial:
    """What came of a training."""

    score: float = float("nan")
    learned: bool = False
    weights: str = ""
    """A hash of all parameters and buffers at the end."""
    error: str = ""
    """The exception that ended the training."""
    outcomes: list[str] = field(default_factory=list)
    """``healthy``, ``unstable``, ...: one for each recording."""
    verdicts: list[str] = field(default_factory=list)
    live: list[Finding] = field(default_factory=list)
    """Found while it trained."""
    warnings: list[str] = field(default_factory=list)
    """What is at least a WARNING, live or in the diagnosis."""
    seconds: float = 0.0

    def actions(self, kind: str) -> int:
        return sum(event.kind == kind for event in self.live)


def hash_of(outcome: Outcome) -> str:
    digest = hashlib.sha256()
    for value in outcome.values():
        digest.update(value.contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def tried(tutorial: Tutorial, seed: int, mode: Mode) -> Trial:
    """Train in this process; recordings are judged, and sent nowhere."""
    trial = Trial()
    began = time.process_time()
    if mode == "bare":
        _train(tutorial, seed, trial)
    else:
        with (
            tempfile.TemporaryDirectory() as folder,
            patch.object(CourierLink, "start"),
            flying(Path(folder), rollback=mode == "rollback") as flown,
        ):
            _train(tutorial, seed, trial)
        for records in flown.recordings:
            _judge(records, trial)
    trial.seconds = time.process_time() - began
    return trial


def _train(tutorial: Tutorial, seed: int, trial: Trial) -> None:
    try:
        outcome = tutorial.run(seed)
    except Exception as error:  # whatever ends the training is a result
        trial.error = f"{type(error).__name__}: {error}"
        return
    trial.score, trial.weights = outcome.score, hash_of(outcome)
    trial.learned = tutorial.learned(outcome)


def _judge(records: list[Record], trial: Trial) -> None:
    events = [record for record in records if isinstance(record, Finding)]
    diagnosis = diagnosis_of(recorded_in(records))
    trial.live += events
    trial.outcomes.append(diagnosis.outcome)
    trial.verdicts.append(diagnosis.verdict)
    result = [(event.kind, event.severity, event.step, event.message) for event in events]
    result += [(episode.kind, episode.severity, episode.start, episode.message) for episode in diagnosis.findings]
    for kind, severity, step, message in result:
        line = f"{severity.name} {kind} at {step}: {message}"
        if severity >= Severity.WARNING and kind not in OF_THE_MACHINE and line not in trial.warnings:
            trial.warnings.append(line)
