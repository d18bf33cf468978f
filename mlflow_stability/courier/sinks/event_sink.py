"""Delivers the events of a recording, and detects a training that hangs.

In: all records. Out: event files, one line for each event, reset, gap and note; the summary that
the run's tags are made from; a `stall` event while no step comes, and one at INFO when it continued or ended.
Guarantees: a new courier knows all that the one before knew; little more than one file's lines is in memory; one long
evaluation an epoch is reported once; a changed wall clock or a suspended machine is not a stall.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import replace
from statistics import median

from mlflow_stability.courier.progress import Delivered
from mlflow_stability.courier.sinks.run_summary import RunSummary
from mlflow_stability.courier.sinks.sink import RunSink
from mlflow_stability.journal.record import Record
from mlflow_stability.kinds.reported.endings import Stall, StallEnd, StallFacts
from mlflow_stability.tracking.artifacts import EVENTS_FOLDER, LINES_PER_FILE, Said, events_name, line_of
from mlflow_stability.tracking.write import RunWriter
from mlflow_stability.vocabulary.measured import StepReading
from mlflow_stability.vocabulary.result import Finding, Severity
from mlflow_stability.vocabulary.run import Closing, Fact, Gap, Reset, Returned

LEAST_SECONDS = 60.0
USUAL_STEPS = 10.0
"""How many usual steps long a pause must be."""
LONGER_THAN_BEFORE = 3.0
"""How many times as long as the longest pause before: trainings evaluate and save now and then."""
_REMEMBERED = 101
_LEAST_STEPS = 5


class StallWatch:
    """The clock of one recording's steps."""

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=_REMEMBERED)
        self._longest = 0.0
        self._step = 0
        self._time: float | None = None
        self._heard_at = 0.0

    def heard(self, step: int, time: float, took: float | None, now: float) -> Finding | None:
        """Take a step in; what to say of the pause before it.

        `time` is the wall clock's at its end, `took` how long it took by a clock that nobody sets, where that was
        measured, and `now` what such a clock of this process said then.
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
        """What to say where no step has come until `now`; None while all is well."""
        limit = self._limit()
        if limit is None or self._time is None or now - self._heard_at <= limit:
            return None
        facts = StallFacts(limit, usual_seconds=median(self._recent))
        return self._event(self._step, Severity.CRITICAL, facts, self._time + limit)

    def ended(self, time: float, now: float) -> Finding | None:
        """What to say of the pause before the end of the training, as `heard` does of one before a step."""
        limit = self._limit()
        if limit is None or self._time is None:
            return None
        seconds = min(time - self._time, now - self._heard_at)  # neither a changed clock nor a suspended machine
        if seconds <= limit:
            return None
        return self._event(self._step, Severity.INFO, StallFacts(seconds, StallEnd.ENDED), time)

    def _limit(self) -> float | None:
        """The longest wait that is no stall; None before steps have a usual time."""
        if len(self._recent) < _LEAST_STEPS:
            return None
        return max(LEAST_SECONDS, USUAL_STEPS * median(self._recent), LONGER_THAN_BEFORE * self._longest)

    @staticmethod
    def _event(step: int, severity: Severity, facts: StallFacts, time: float) -> Finding:
        return Finding.at(facts, step, severity, remedies=Stall.remedies if severity > Severity.INFO else (), time=time)


class EventSink(RunSink):
    """The events of one recording."""

    words = "findings"
    interval = 10.0

    def __init__(self, delivered: Delivered, writer: RunWriter) -> None:
        super().__init__(delivered, writer)
        self.story = RunSummary(delivered.offset)
        self.concluded = False
        self._stalls = StallWatch()
        self._file = 0
        """The number of the first of the files below."""
        self._files = deque([[line_of(Fact(key, value)) for key, value in (delivered.git or {}).items()]])
        """The lines of each file that has not arrived whole; only the last one takes more."""
        self._changed = bool(self._files[0])

    @property
    def full(self) -> bool:
        """Whether a file has all its lines, and waits to be sent."""
        return len(self._files) > 1

    def take(self, record: Record) -> None:
        """Add a record to the story, and a line for it to the file."""
        self.story.take(record)
        offset = self._offset
        if isinstance(record, StepReading):
            heard_at = time.monotonic() - self._late(record)
            pause = self._stalls.heard(record.step, record.time, _took(record), heard_at)
            if pause is not None:
                self._write(pause.shifted(offset))
        elif not isinstance(record, Returned):
            if isinstance(record, Closing):
                ended = self._stalls.ended(record.time, time.monotonic() - self._late(record))
                if ended:
                    self._write(ended.shifted(offset))
            self._write(_counted(record, offset))

    def flush(self, over: bool) -> bool:
        """Send a file that is full, or one that has changed when it is due."""
        full = self.full
        if full or (self._changed and not self.more and self.due(over)):
            self._send()
        if full:
            self._next_file()
        arrived = not full and not self.more and not self._changed
        self.done = over and arrived
        self.hurried = self.hurried and not arrived
        return full

    def conclude(self, closing: Closing) -> None:
        """Add how it ended, where the journal has no line that says so."""
        if not self.concluded:
            self.concluded = True
            self._write(closing)

    def add(self, event: Finding) -> None:
        """Add what the courier has found itself; its step is as the run counts."""
        self.story.take(event)
        self._write(event)

    def look_for_stall(self) -> None:
        """See whether steps still come; while none does, the run says so."""
        if self.end_seen_at is None:
            return
        stall = self._stalls.look(self.end_seen_at)
        if stall != self.story.stalled:
            self.story.stalled = stall
            self._changed = True

    def _write(self, said: Said) -> None:
        self._files[-1].append(line_of(said))
        if len(self._files[-1]) >= LINES_PER_FILE:
            self._files.append([])
        self._changed, self.done = True, False

    def _late(self, reading: StepReading | Closing) -> float:
        """How long ago a step ended, of those that were there before this courier: only the wall clock tells."""
        return max(0.0, time.time() - reading.time) if self.end_seen_at is None else 0.0

    def _send(self) -> None:
        if self._file >= self._delivered.events_files:
            stalled = self.story.stalled
            now = [] if stalled is None or self.full else [line_of(_counted(stalled, self._offset))]
            text = "".join([*self._files[0], *now])
            name = events_name(self._number, self._file)
            self.upload(EVENTS_FOLDER, name, text)
        self._changed = False
        self.looked_at = time.monotonic()

    def _next_file(self) -> None:
        self._file += 1
        self._files.popleft()
        self._changed = bool(self._files[0]) or self.story.stalled is not None
        if self._file > self._delivered.events_files:
            self._delivered.events_files = self._file
            self._delivered.save()


def _counted(record: Said, offset: int) -> Said:
    """The same record, with its steps as the run counts them."""
    if isinstance(record, Finding):
        return record.shifted(offset)
    if isinstance(record, Reset) and offset:
        return replace(record, step=record.step + offset)
    if isinstance(record, Gap) and offset and record.first_step:
        return replace(record, first_step=record.first_step + offset, last_step=record.last_step + offset)
    return record


def _took(reading: StepReading) -> float | None:
    """How long the step took by the training's own clock that nobody sets; None where that was not measured."""
    pairs = zip(reading.signals, reading.values, strict=True)
    return next((value for signal, value in pairs if signal.quantity == "step_time"), None)
