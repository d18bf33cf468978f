"""Deliver findings of a recording, and detect a training that hangs.

Event files have one line for each finding, reset, gap and note. Guarantees: a new courier knows all that the last one
knew; little more than one file's lines is in memory. Stalls: one long evaluation an epoch is reported once; a changed
wall clock or a suspended machine is not one.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median

from mlflow_stability.courier.progress import Delivered
from mlflow_stability.courier.sinks.sink import RunSink
from mlflow_stability.journal.journal import Record
from mlflow_stability.kinds.reported.endings import Stall, StallEnd, StallFacts
from mlflow_stability.kinds.reported.rollback import RollbackFacts, rollbacks_kept
from mlflow_stability.tracking.artifacts import EVENTS_FOLDER, LINES_PER_FILE, EventLine, events_name, line_of
from mlflow_stability.tracking.run_writer import RunWriter
from mlflow_stability.vocabulary.measured.signal import StepReading
from mlflow_stability.vocabulary.result import Finding, Severity
from mlflow_stability.vocabulary.run import Closing, Fact, Gap, Note, Reset, Returned
from mlflow_stability.vocabulary.text.phrases import counted


class RunSummary:
    """Summary of a recording for tags, description and artifacts, with steps as the run counts them."""

    def __init__(self, offset: int) -> None:
        self.first_step = 0
        self.last_step = 0
        self.last_time = 0.0
        self.closing: Closing | None = None
        self.returned: Closing | None = None
        """How it ended if nothing more comes: the training thread has ended since the last step."""
        self.events: Counter[str] = Counter()
        self.stalled: Finding | None = None  # set while the training hangs
        self._rollbacks: list[RollbackFacts] = []
        self.last_reading: StepReading | None = None  # newest step of the main training
        self.worst_event: Finding | None = None  # newest of the worst severity, from WARNING on
        self.notes: dict[str, str] = {}
        self._offset = offset
        self._last_event: Finding | None = None
        self._gaps: list[Gap] = []

    @property
    def rollbacks(self) -> int:
        """Number of rollbacks that were not reverted."""
        return rollbacks_kept(self._rollbacks)

    def take(self, record: Record) -> None:
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
            if isinstance(record.facts, RollbackFacts):
                self._rollbacks.append(record.facts)
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
            self.stalled = None  # it ended, so it was no stall

    @property
    def skipped_steps(self) -> int:
        """Steps skipped by the guard or the loss scaler."""
        return round(self.value("skipped_steps") or 0)

    def value(self, quantity: str) -> float | None:
        """Return the newest value of a quantity of the whole model."""
        reading = self.last_reading
        if reading is None:
            return None
        pairs = zip(reading.signals, reading.values, strict=True)
        return next((value for signal, value in pairs if signal.quantity == quantity and not signal.place), None)

    def findings(self, others: Iterable[dict[str, int]] = ()) -> Counter[str]:
        """Count findings by severity; `others`: those of the run's other recordings."""
        counts = Counter(self.events)
        for other in others:
            counts.update(other)
        if self.stalled is not None:
            counts[self.stalled.severity.name] += 1
        return counts

    @property
    def last_event(self) -> str:
        """The newest finding in words, or empty."""
        event = self.stalled or self._last_event
        return "" if event is None else self.told(event)

    def told(self, event: Finding) -> str:
        """Describe a finding with its step as the run counts it."""
        return f"{event.kind} at step {event.step + self._offset}: {event.message}"

    @property
    def missing(self) -> str:
        """Steps that could not be recorded, or empty."""
        return "; ".join(self._missing(gap) for gap in self._gaps)

    def folder(self, kind: str) -> Path | None:
        """Return the folder of the checkpoints, or of the batches to be sent, once known."""
        folder = self.notes.get(kind)
        return Path(folder) if folder else None

    def _missing(self, gap: Gap) -> str:
        if not gap.first_step:
            return f"records were lost ({gap.reason})"
        first, last = gap.first_step + self._offset, gap.last_step + self._offset
        return f"steps {first} to {last} are missing ({gap.reason})"


def events_in_words(events: Counter[str]) -> str:
    """`1 critical, 2 warnings`, or `none`."""
    parts = [f"{events['CRITICAL']} critical"] if events["CRITICAL"] else []
    return ", ".join(parts + ([counted(events["WARNING"], "warning")] if events["WARNING"] else [])) or "none"


LEAST_SECONDS = 60.0
USUAL_STEPS = 10.0  # shortest stall as a multiple of the usual step time
LONGER_THAN_BEFORE = 3.0
"""Shortest stall as a multiple of the longest pause before: trainings evaluate and save now and then."""
_REMEMBERED = 101
_LEAST_STEPS = 5


class StallWatch:
    """Detects pauses between the steps of one recording."""

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=_REMEMBERED)
        self._longest = 0.0
        self._step = 0
        self._time: float | None = None
        self._heard_at = 0.0

    def heard(self, step: int, time: float, took: float | None, now: float) -> Finding | None:
        """Note a step; return a finding about the pause before it.

        `time`: its end by the wall clock. `took`: its duration by the training's monotonic clock, if measured. `now`:
        its end by the monotonic clock of this process.
        """
        before, last = self._time, self._step
        self._time, self._step, self._heard_at = time, step, now
        if before is None:
            return None
        seconds = time - before if took is None else took
        if seconds <= 0:
            return None
        limit = self._limit()
        if seconds < LEAST_SECONDS:
            self._recent.append(seconds)
        self._longest = max(self._longest, seconds)
        if limit is None or seconds <= limit:
            return None
        return self._event(last, Severity.INFO, StallFacts(seconds, StallEnd.CONTINUED), time)

    def look(self, now: float) -> Finding | None:
        """Return a finding if no step has come until `now`."""
        limit = self._limit()
        if limit is None or self._time is None or now - self._heard_at <= limit:
            return None
        facts = StallFacts(limit, usual_seconds=median(self._recent))
        return self._event(self._step, Severity.CRITICAL, facts, self._time + limit)

    def ended(self, time: float, now: float) -> Finding | None:
        """Return a finding about a pause before the end of the training."""
        limit = self._limit()
        if limit is None or self._time is None:
            return None
        seconds = min(time - self._time, now - self._heard_at)  # neither a changed clock nor a suspended machine
        if seconds <= limit:
            return None
        return self._event(self._step, Severity.INFO, StallFacts(seconds, StallEnd.ENDED), time)

    def _limit(self) -> float | None:
        """Return the shortest stall; None before the step time is known."""
        if len(self._recent) < _LEAST_STEPS:
            return None
        return max(LEAST_SECONDS, USUAL_STEPS * median(self._recent), LONGER_THAN_BEFORE * self._longest)

    @staticmethod
    def _event(step: int, severity: Severity, facts: StallFacts, time: float) -> Finding:
        return Finding.at(facts, step, severity, remedies=Stall.remedies if severity > Severity.INFO else (), time=time)


class EventSink(RunSink):
    words = "findings"
    interval = 10.0

    def __init__(self, delivered: Delivered, writer: RunWriter) -> None:
        super().__init__(delivered, writer)
        self.story = RunSummary(delivered.offset)
        self.concluded = False
        self._stalls = StallWatch()
        self._file = 0  # number of the first file in `_files`
        self._files = deque([[line_of(Fact(key, value)) for key, value in (delivered.git or {}).items()]])
        """Lines of each file that has not arrived completely; the last one grows."""
        self._changed = bool(self._files[0])

    @property
    def full(self) -> bool:
        """Whether a complete file waits to be sent."""
        return len(self._files) > 1

    def take(self, record: Record) -> None:
        self.story.take(record)
        offset = self._offset
        if isinstance(record, StepReading):
            heard_at = time.monotonic() - self._late(record)
            pairs = zip(record.signals, record.values, strict=True)
            # By the training's monotonic clock, if measured.
            duration = next((value for signal, value in pairs if signal.quantity == "step_time"), None)
            pause = self._stalls.heard(record.step, record.time, duration, heard_at)
            if pause is not None:
                self._write(pause.shifted(offset))
        elif not isinstance(record, Returned):
            if isinstance(record, Closing):
                ended = self._stalls.ended(record.time, time.monotonic() - self._late(record))
                if ended:
                    self._write(ended.shifted(offset))
            self._write(_with_steps_of_run(record, offset))

    def flush(self, over: bool) -> bool:
        """Send a complete file, or one that has changed when it is due."""
        full = self.full
        if full or (self._changed and not self.more and self.due(over)):
            self._send()
        if full:
            self._file += 1
            self._files.popleft()
            self._changed = bool(self._files[0]) or self.story.stalled is not None
            if self._file > self._delivered.events_files:
                self._delivered.events_files = self._file
                self._delivered.save()
        arrived = not full and not self.more and not self._changed
        self.done = over and arrived
        self.hurried = self.hurried and not arrived
        return full

    def conclude(self, closing: Closing) -> None:
        """Add how it ended, where the journal does not say so."""
        if not self.concluded:
            self.concluded = True
            self._write(closing)

    def add(self, event: Finding) -> None:
        """Add a finding of the courier, with its step as the run counts it."""
        self.story.take(event)
        self._write(event)

    def look_for_stall(self) -> None:
        """Check that steps still come."""
        if self.end_seen_at is None:
            return
        stall = self._stalls.look(self.end_seen_at)
        if stall != self.story.stalled:
            self.story.stalled = stall
            self._changed = True

    def _write(self, line: EventLine) -> None:
        self._files[-1].append(line_of(line))
        if len(self._files[-1]) >= LINES_PER_FILE:
            self._files.append([])
        self._changed, self.done = True, False

    def _late(self, reading: StepReading | Closing) -> float:
        """Return the age of a step that was there before this courier: only the wall clock tells."""
        return max(0.0, time.time() - reading.time) if self.end_seen_at is None else 0.0

    def _send(self) -> None:
        if self._file >= self._delivered.events_files:
            stalled = self.story.stalled
            now = [] if stalled is None or self.full else [line_of(_with_steps_of_run(stalled, self._offset))]
            text = "".join([*self._files[0], *now])
            name = events_name(self._number, self._file)
            self.upload(EVENTS_FOLDER, name, text)
        self._changed = False
        self.looked_at = time.monotonic()


def _with_steps_of_run(record: EventLine, offset: int) -> EventLine:
    if isinstance(record, Finding):
        return record.shifted(offset)
    if isinstance(record, Reset) and offset:
        return replace(record, step=record.step + offset)
    if isinstance(record, Gap) and offset and record.first_step:
        return replace(record, first_step=record.first_step + offset, last_step=record.last_step + offset)
    return record
