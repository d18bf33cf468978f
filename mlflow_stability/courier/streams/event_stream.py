"""Delivers the events of a recording, and detects a training that hangs.

In: the journal, from its first line. Out: event files, one line for each event, reset, gap and note; the summary that
the run's tags are made from; a `stall` event while no step comes, and one at INFO when it continued or ended.
Guarantees: a new courier knows all that the one before knew; at most one file's lines are in memory; one long
evaluation an epoch is reported once; a changed wall clock or a suspended machine is not a stall.
"""

from __future__ import annotations

import tempfile
import time
from collections import deque
from dataclasses import replace
from pathlib import Path
from statistics import median

from mlflow_stability.courier.progress import Delivered
from mlflow_stability.courier.streams.run_summary import RunSummary
from mlflow_stability.errors import TrackingError
from mlflow_stability.journal.follower import JournalFollower
from mlflow_stability.journal.writer import NAME as JOURNAL
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


_READ_AT_ONCE = 500
_INTERVAL = 10.0


class EventStream:
    """The events of one recording."""

    def __init__(self, delivered: Delivered, writer: RunWriter) -> None:
        self.done = False
        self.hurried = False
        self.story = RunSummary(delivered.offset)
        self.concluded = False
        self.reached = 0
        """The position up to which the journal was heard."""
        self._stalls = StallWatch()
        self._all_heard_at: float | None = None
        """When the end of the journal was seen last; steps may have come since then."""
        self._delivered = delivered
        self._writer = writer
        self._follower = JournalFollower(delivered.folder / JOURNAL)
        self._file = 0
        self._lines = [line_of(Fact(key, value)) for key, value in (delivered.git or {}).items()]
        self._changed = bool(self._lines)
        self._sent_at = 0.0

    @property
    def broken_lines(self) -> int:
        """How many lines of the journal were torn."""
        return self._follower.broken_lines

    def advance(self, over: bool) -> bool:
        """Hear on, and send the file when it has changed."""
        full = len(self._lines) >= LINES_PER_FILE
        more = not full and self._read()
        hurry = over or self.hurried
        if full or (self._changed and not more and (hurry or time.monotonic() - self._sent_at >= _INTERVAL)):
            self._send()
        if full:
            self._next_file()
        arrived = not full and not more and not self._changed
        self.done = over and arrived
        self.hurried = self.hurried and not arrived
        return full or more

    def conclude(self, closing: Closing) -> None:
        """Add how it ended, where the journal has no line that says so."""
        if not self.concluded:
            self.concluded = True
            self._lines.append(line_of(closing))
            self._changed, self.done = True, False

    def add(self, event: Finding) -> None:
        """Add what the courier has found itself; its step is as the run counts."""
        self.story.hear(event)
        self._lines.append(line_of(event))
        self._changed, self.done = True, False

    def look_for_stall(self) -> None:
        """See whether steps still come; while none does, the run says so."""
        if self._all_heard_at is None:
            return
        stall = self._stalls.look(self._all_heard_at)
        if stall != self.story.stalled:
            self.story.stalled = stall
            self._changed = True

    def _read(self) -> bool:
        limit = min(_READ_AT_ONCE, LINES_PER_FILE - len(self._lines))
        now = time.monotonic()
        entries = self._follower.read(limit)
        for entry in entries:
            self.story.hear(entry.record)
            self.reached = entry.end
            if isinstance(entry.record, StepReading):
                pause = self._stalls.heard(
                    entry.record.step, entry.record.time, _took(entry.record), now - self._late(entry.record)
                )
                if pause is not None:
                    self._lines.append(line_of(_counted(pause, self._delivered.offset)))
                    self._changed = True
            elif not isinstance(entry.record, Returned):
                ended = isinstance(entry.record, Closing) and self._stalls.ended(
                    entry.record.time, now - self._late(entry.record)
                )
                if ended:
                    self._lines.append(line_of(_counted(ended, self._delivered.offset)))
                self._lines.append(line_of(_counted(entry.record, self._delivered.offset)))
                self._changed = True
        if len(entries) < limit:
            self._all_heard_at = now
        return len(entries) >= limit

    def _late(self, reading: StepReading | Closing) -> float:
        """How long ago a step ended, of those that were there before this courier: only the wall clock tells."""
        return max(0.0, time.time() - reading.time) if self._all_heard_at is None else 0.0

    def _send(self) -> None:
        if self._file >= self._delivered.events_files:
            number, stalled = self._delivered.number or 0, self.story.stalled
            now = [] if stalled is None else [line_of(_counted(stalled, self._delivered.offset))]
            try:
                with tempfile.TemporaryDirectory(prefix="mlflow-stability-") as room:
                    file = Path(room, events_name(number, self._file))
                    file.write_text("".join([*self._lines, *now]), encoding="utf-8")
                    self._writer.upload(file, EVENTS_FOLDER)
            except OSError as error:
                raise TrackingError(f"Could not write the event file: {error}") from error
        self._changed = False
        self._sent_at = time.monotonic()

    def _next_file(self) -> None:
        self._file += 1
        self._lines = []
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
