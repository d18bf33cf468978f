"""What an outlet is, and what it is told about the training.

Outlets do not need the tracking server: alerts are most welcome while it is away.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from mlflow_stability.alerts.metrics import PrometheusExporter
from mlflow_stability.alerts.outlet_settings import OutletSettings
from mlflow_stability.journal.follower import JournalFollower, is_deleted
from mlflow_stability.journal.last_words import closing_in, read_last_words
from mlflow_stability.journal.record import Record
from mlflow_stability.journal.writer import NAME as JOURNAL
from mlflow_stability.vocabulary.measured import StepReading
from mlflow_stability.vocabulary.result import Finding
from mlflow_stability.vocabulary.run import Closing, Returned

_READ_AT_ONCE = 500


def _say_nothing(_: str) -> None:
    """Where no training is there to pass it on."""


@dataclass(frozen=True, slots=True)
class OutletPlan:
    """What a session's recordings are delivered to beside their runs."""

    settings: OutletSettings = field(default_factory=OutletSettings)
    say: Callable[[str], None] = _say_nothing
    """Has the training say something on its console, once."""
    prometheus: PrometheusExporter | None = None
    """The port that all recordings of the session share."""


def outlet_plan(settings: OutletSettings, say: Callable[[str], None]) -> OutletPlan:
    """The plan for the recordings of one session."""
    port = settings.prometheus_port
    return OutletPlan(settings, say, None if port is None else PrometheusExporter(port, say))


@dataclass(frozen=True, slots=True)
class TrainingState:
    """The training at this moment."""

    alive: bool
    killed_for_memory: Callable[[], bool]
    stalled: Finding | None = None
    """Set while it hangs."""


class JournalReader:
    """Reads a journal for an outlet, and tells when nothing more will come."""

    def __init__(self, folder: Path, start: int = 0) -> None:
        self.closing: Closing | None = None
        """How the training said that it ended."""
        self.returned: Closing | None = None
        """How it ended if no other step comes."""
        self.until = start
        """The position up to which it was read."""
        self._folder = folder
        self._follower = JournalFollower(folder / JOURNAL, start)
        self._more = True

    def read(self) -> list[Record]:
        """The next records."""
        entries = self._follower.read(_READ_AT_ONCE)
        self._more = len(entries) >= _READ_AT_ONCE
        for entry in entries:
            record = entry.record
            self.until = entry.end
            if isinstance(record, StepReading):
                self.returned = None
            elif isinstance(record, Returned):
                self.returned = Closing(record.outcome, record.detail, record.step, record.time)
            elif isinstance(record, Closing):
                self.closing = record
        return [entry.record for entry in entries]

    @property
    def deleted(self) -> bool:
        """Whether the journal is gone before it said how the training ended."""
        return is_deleted(self._folder)

    @property
    def more(self) -> bool:
        """Whether there is more to read at once."""
        return self._more

    def is_over(self, state: TrainingState) -> bool:
        """Whether everything was read that will ever come."""
        if self._more:
            return False
        if self.closing is None:
            self.closing = closing_in(read_last_words(self._folder))
        return self.closing is not None or not state.alive


class Outlet(Protocol):
    """One way out of the journal, beside the run."""

    done: bool
    """Nothing is left to send, or it was given up."""
    awaited: bool
    """The end of the training should wait for it a little."""

    def advance(self, state: TrainingState) -> bool:
        """Do a bite of work; True if there is more to do at once. Never waits for a network, never raises for one."""
