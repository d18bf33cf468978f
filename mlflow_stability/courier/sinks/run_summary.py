"""What a recording has to say of itself beside its curves: for the run's tags, its description and its artifacts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from mlflow_stability.journal.record import Record
from mlflow_stability.kinds.reported.rollback import Rollback
from mlflow_stability.vocabulary.measured import StepReading
from mlflow_stability.vocabulary.result import Finding, Severity
from mlflow_stability.vocabulary.run import Closing, Gap, Note, Returned
from mlflow_stability.vocabulary.settings import BATCHES_FOLDER, CHECKPOINTS_FOLDER
from mlflow_stability.vocabulary.text import counted


class RunSummary:
    """Made record by record; steps are those that the run counts."""

    def __init__(self, offset: int) -> None:
        self.first_step = 0
        self.last_step = 0
        self.last_time = 0.0
        self.closing: Closing | None = None
        self.returned: Closing | None = None
        """How it ended if nothing more comes: the thread that trained has ended since the last step."""
        self.events: Counter[str] = Counter()
        self.stalled: Finding | None = None
        """Set while the training hangs."""
        self.rollbacks = 0
        self.last_reading: StepReading | None = None
        """The newest step of the main training."""
        self.worst_event: Finding | None = None
        """The newest of the worst severity, from WARNING on."""
        self.notes: dict[str, str] = {}
        self._offset = offset
        self._last_event: Finding | None = None
        self._gaps: list[Gap] = []

    @property
    def checkpoints(self) -> Path | None:
        """Where the training keeps its checkpoints, once it has said so."""
        return self._folder(CHECKPOINTS_FOLDER)

    @property
    def batches(self) -> Path | None:
        """Where it keeps the batches of broken steps, once it has said so: only if they are to be sent."""
        return self._folder(BATCHES_FOLDER)

    def take(self, record: Record) -> None:
        """Take a record in."""
        if isinstance(record, StepReading):
            self.last_step = record.step + self._offset
            self.first_step = self.first_step or self.last_step
            self.last_time = record.time
            self.returned = None
            if not record.signals or not record.signals[0].place:
                self.last_reading = record
        elif isinstance(record, Finding):
            self.events[record.severity.name] += 1
            self._last_event = record
            self.rollbacks += record.kind == Rollback.kind
            worst = self.worst_event
            if record.severity >= (Severity.WARNING if worst is None else worst.severity):
                self.worst_event = record
        elif isinstance(record, Note):
            self.notes[record.key] = record.value
        elif isinstance(record, Gap):
            self._gaps.append(record)
        elif isinstance(record, Returned):
            self.returned = Closing(**asdict(record))
        elif isinstance(record, Closing):
            self.closing = record
            self.stalled = None  # what came to its own end was no stall

    @property
    def skipped_steps(self) -> int:
        """How many steps the guard or the loss scaler has skipped, as the newest step counts them."""
        return round(self.value("skipped_steps") or 0)

    def value(self, quantity: str) -> float | None:
        """What the newest step says of a quantity of the whole model."""
        reading = self.last_reading
        if reading is None:
            return None
        pairs = zip(reading.signals, reading.values, strict=True)
        return next((value for signal, value in pairs if signal.quantity == quantity and not signal.place), None)

    def findings(self, others: Iterable[dict[str, int]] = ()) -> Counter[str]:
        """How many events of each severity; `others`: those of the run's other recordings."""
        found = Counter(self.events)
        for each in others:
            found.update(each)
        if self.stalled is not None:
            found[self.stalled.severity.name] += 1
        return found

    @property
    def last_event(self) -> str:
        """The newest finding in words; empty where there is none."""
        event = self.stalled or self._last_event
        return "" if event is None else self.told(event)

    def told(self, event: Finding) -> str:
        """A finding with its step as the run counts it."""
        return f"{event.kind} at step {event.step + self._offset}: {event.message}"

    @property
    def missing(self) -> str:
        """Which steps could not be recorded; empty where all were."""
        return "; ".join(self._missing(gap) for gap in self._gaps)

    def _folder(self, key: str) -> Path | None:
        said = self.notes.get(key)
        return Path(said) if said else None

    def _missing(self, gap: Gap) -> str:
        if not gap.first_step:
            return f"records were lost ({gap.reason})"
        first, last = gap.first_step + self._offset, gap.last_step + self._offset
        return f"steps {first} to {last} are missing ({gap.reason})"


def events_in_words(events: Counter[str]) -> str:
    """`1 critical, 2 warnings`; `none` where there are neither."""
    said = [f"{events['CRITICAL']} critical"] if events["CRITICAL"] else []
    return ", ".join(said + ([counted(events["WARNING"], "warning")] if events["WARNING"] else [])) or "none"
