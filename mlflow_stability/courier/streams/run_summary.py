"""What a recording has to say of itself beside its curves: the facts that become tags of the run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from mlflow_stability.journal.record import Record
from mlflow_stability.vocabulary.measured.observation import StepReading
from mlflow_stability.vocabulary.result.event import Event, Severity
from mlflow_stability.vocabulary.run.milestone import Closing, Fact, Gap, Note, Returned
from mlflow_stability.vocabulary.settings import BATCHES_FOLDER, CHECKPOINTS_FOLDER


class Story:
    """Told record by record; steps are those that the run counts."""

    def __init__(self, offset: int) -> None:
        self.first_step = 0
        self.last_step = 0
        self.last_time = 0.0
        self.closing: Closing | None = None
        self.returned: Closing | None = None
        """How it ended if nothing more comes: the thread that trained has ended since the last step."""
        self.events: Counter[str] = Counter()
        self.stalled: Event | None = None
        """Set while the training hangs."""
        self.facts: dict[str, str] = {}
        """What the run should know about itself: its parameters, by key."""
        self._offset = offset
        self._last_event: Event | None = None
        self._notes: dict[str, str] = {}
        self._gaps: list[Gap] = []

    @property
    def checkpoints(self) -> Path | None:
        """Where the training keeps its checkpoints, once it has said so."""
        return self._folder(CHECKPOINTS_FOLDER)

    @property
    def batches(self) -> Path | None:
        """Where it keeps the batches of broken steps, once it has said so: only if they are to be sent."""
        return self._folder(BATCHES_FOLDER)

    def hear(self, record: Record) -> None:
        """Take a record in."""
        if isinstance(record, StepReading):
            self.last_step = record.step + self._offset
            self.first_step = self.first_step or self.last_step
            self.last_time = record.time
            self.returned = None
        elif isinstance(record, Event):
            self.events[record.severity.name] += 1
            self._last_event = record
        elif isinstance(record, Note):
            self._notes[record.key] = record.value
        elif isinstance(record, Fact):
            self.facts.setdefault(record.key, record.value)
        elif isinstance(record, Gap):
            self._gaps.append(record)
        elif isinstance(record, Returned):
            self.returned = Closing(**asdict(record))
        elif isinstance(record, Closing):
            self.closing = record
            self.stalled = None  # what came to its own end was no stall

    def tags(self, others: Iterable[dict[str, int]] = ()) -> dict[str, str]:
        """The tags that tell it; `others`: the events of the run's other recordings, by severity."""
        tags = {f"stability.{key}": value for key, value in self._notes.items()}
        events = Counter(self.events)
        for each in others:
            events.update(each)
        if self.stalled is not None:
            events[self.stalled.severity.name] += 1
        tags["stability.events"] = events_in_words(events)
        event = self.stalled or self._last_event
        if event is not None:
            tags["stability.last_event"] = f"{event.kind} at step {event.step + self._offset}: {event.message}"
        if self._gaps:
            tags["stability.recording_gap"] = "; ".join(self._missing(gap) for gap in self._gaps)
        return tags

    def _folder(self, key: str) -> Path | None:
        said = self._notes.get(key)
        return Path(said) if said else None

    def _missing(self, gap: Gap) -> str:
        if not gap.first_step:
            return f"records were lost ({gap.reason})"
        first, last = gap.first_step + self._offset, gap.last_step + self._offset
        return f"steps {first} to {last} are missing ({gap.reason})"


def events_in_words(events: Counter[str]) -> str:
    """`1 critical, 0 warning`."""
    return ", ".join(
        f"{events[severity.name]} {severity.name.lower()}" for severity in (Severity.CRITICAL, Severity.WARNING)
    )
