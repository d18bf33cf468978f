"""Carries what happened in a recording into its run: one line for each event, reset, gap, note.

In: the journal, from its first line. Out: files of events, and the `Story` from which the run's tags are made.
Promised: the journal is always heard from the beginning, so that a new courier knows all that the one before knew; at
most one file's lines are in memory.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import replace
from pathlib import Path

from mlflow_stability.courier.delivered import Delivered
from mlflow_stability.courier.stall_watch import StallWatch
from mlflow_stability.courier.story import Story
from mlflow_stability.errors import TrackingError
from mlflow_stability.journal.follower import JournalFollower
from mlflow_stability.journal.writer import NAME as JOURNAL
from mlflow_stability.tracking.record_events import EVENTS_FOLDER, LINES_PER_FILE, Said, events_name, line_of
from mlflow_stability.tracking.run_writer import RunWriter
from mlflow_stability.vocabulary.event import Event
from mlflow_stability.vocabulary.milestone import Gap, Reset, Returned
from mlflow_stability.vocabulary.observation import StepReading

_READ_AT_ONCE = 500
_INTERVAL = 10.0


class EventStream:
    """The events of one recording."""

    def __init__(self, delivered: Delivered, writer: RunWriter) -> None:
        self.done = False
        self.story = Story(delivered.offset)
        self.reached = 0
        """The place up to which the journal was heard."""
        self._stalls = StallWatch()
        self._all_heard_at: float | None = None
        """When the end of the journal was seen last; steps may have come since then."""
        self._delivered = delivered
        self._writer = writer
        self._follower = JournalFollower(delivered.folder / JOURNAL)
        self._file = 0
        self._lines: list[str] = []
        self._changed = False
        self._sent_at = 0.0

    @property
    def broken_lines(self) -> int:
        """How many lines of the journal were torn."""
        return self._follower.broken_lines

    def advance(self, over: bool) -> bool:
        """Hear on, and send the file when it has changed."""
        full = len(self._lines) >= LINES_PER_FILE
        more = not full and self._read()
        if full or (self._changed and not more and (over or time.monotonic() - self._sent_at >= _INTERVAL)):
            self._send()
        if full:
            self._next_file()
        self.done = over and not full and not more and not self._changed
        return full or more

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
                self._lines.append(line_of(_counted(entry.record, self._delivered.offset)))
                self._changed = True
        if len(entries) < limit:
            self._all_heard_at = now
        return len(entries) >= limit

    def _late(self, reading: StepReading) -> float:
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
                raise TrackingError(f"Could not write the file of events: {error}") from error
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
    if isinstance(record, Event | Reset) and offset:
        return replace(record, step=record.step + offset)
    if isinstance(record, Gap) and offset and record.first_step:
        return replace(record, first_step=record.first_step + offset, last_step=record.last_step + offset)
    return record


def _took(reading: StepReading) -> float | None:
    """How long the step took by the training's own clock that nobody sets; None where that was not measured."""
    pairs = zip(reading.signals, reading.values, strict=True)
    return next((value for signal, value in pairs if signal.quantity == "step_time"), None)
