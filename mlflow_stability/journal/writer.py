"""Appends one line a step to a journal, and never fails the training for it.

In: readings, events and milestones of one recording. Out: `journal` and `last_words.json` in the recording's folder,
mode 0600 in 0700. Guarantees: a record is one `os.write` on a descriptor opened for appending, so records of a killed
process are whole up to its last one; a full disk makes `append` return False instead of raising, tears no other
record, and is tried again every ten seconds; a forked child writes nothing.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import asdict
from pathlib import Path

from mlflow_stability.journal.last_words import LastWords
from mlflow_stability.journal.record import Record, encode, encode_layout, encode_step
from mlflow_stability.journal.slow_writes import SLOW_SECONDS, SlowWrites, WriteTimes
from mlflow_stability.vocabulary.measured import Signal, StepReading
from mlflow_stability.vocabulary.run import Closing, Gap, Opening

NAME = "journal"
RETRY_SECONDS = 10.0
MOST_NUMBERS = 1024
"""So many tuples of names are told by identity; a training has a handful."""


class JournalWriter:
    """Append-only journal writer of one recording."""

    def __init__(self, folder: Path, opening: Opening) -> None:
        folder.mkdir(mode=0o700, parents=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        self.folder = folder
        self.failure = ""
        """Why nothing is being recorded at the moment; empty while all is well."""
        self.bytes_written = 0
        self._writes, self._times = 0, WriteTimes()
        self._pid = os.getpid()
        self._lock = threading.RLock()
        """What was found in steps that waited may be kept by another thread than the steps are."""
        self._fd = os.open(folder / NAME, flags, 0o600)
        self._last_words = LastWords(folder)
        self._layouts: dict[tuple[Signal, ...], int] = {}
        self._numbers: dict[int, tuple[int, tuple[Signal, ...]]] = {}
        """The same by the identity of the tuple, which is kept here: no name in it is hashed at a step."""
        self._torn = False
        self._gap: tuple[int, int] | None = None
        self._retry_at = 0.0
        line = encode(opening)
        if not self._write(line):
            raise OSError(self.failure)

    def append(self, record: Record) -> bool:
        """Keep a record; False if it could not be kept (the disk is full, or this is a forked child)."""
        if os.getpid() != self._pid:
            return False
        with self._lock:
            if self.failure and not self._recovered():
                self._missed(record)
                return False
            if not isinstance(record, StepReading):
                kept = self._write(encode(record))
            elif (known := self._numbers.get(id(record.signals))) is not None:
                kept = self._write(encode_step(record, known[0]))
            else:
                kept = self._write_with_layout(record)
            if not kept:
                self._missed(record)
            return kept

    def slow_writes(self) -> SlowWrites | None:
        """What slow writes cost, the first time that it is much; to be asked now and then."""
        return self._times.found(self._writes)

    def close(self) -> None:
        """Give the descriptors back; the journal stays for the courier."""
        if os.getpid() != self._pid:  # whoever held the lock when this process was forked is not in it
            self._fd = -1
            return
        with self._lock:  # else a line of another thread could go to a file that gets the same number
            if self._fd >= 0:
                os.close(self._fd)
                self._last_words.close()
            self._fd = -1

    def _write_with_layout(self, step: StepReading) -> bool:
        """A step whose tuple of names was not seen before."""
        new = len(self._layouts)
        layout = self._layouts.get(step.signals, new)
        if not self._write((encode_layout(layout, step.signals) if layout == new else b"") + encode_step(step, layout)):
            return False
        # Not before: Ctrl-C may have kept the line of the names from being written.
        self._layouts[step.signals] = layout
        if len(self._numbers) >= MOST_NUMBERS:
            self._numbers.clear()
        self._numbers[id(step.signals)] = layout, step.signals
        return True

    def _write(self, line: bytes) -> bool:
        """One write; a torn one is closed off by a newline in front of the next."""
        if self._torn:
            line = b"\n" + line
        self._torn = True  # until it is known to be whole: Ctrl-C may come in between
        began = time.perf_counter()
        try:
            written = os.write(self._fd, line)
        except OSError as error:
            self._failed(error.strerror or str(error))
            return False
        took = time.perf_counter() - began
        if took >= SLOW_SECONDS:
            self._times.add_slow(took)
        self._writes += 1
        self.bytes_written += written
        if written != len(line):  # a full disk gives short writes without an exception
            self._failed(os.strerror(28))
            return False
        self._torn = False
        return True

    def _failed(self, reason: str) -> None:
        self.failure = reason
        self._layouts.clear()  # the line that named them may be the torn one
        self._numbers.clear()
        self._retry_at = time.monotonic() + RETRY_SECONDS

    def _missed(self, record: Record) -> None:
        if isinstance(record, Closing):
            self._last_words.say(closing=asdict(record))
        if isinstance(record, StepReading):
            if self._gap is None:
                self._last_words.say(stopped_at=record.step, reason=self.failure, time=record.time)
            self._gap = (self._gap[0] if self._gap else record.step, record.step)

    def _recovered(self) -> bool:
        """After a while, try again: with space back, say what is missing and go on."""
        if time.monotonic() < self._retry_at:
            return False
        reason = self.failure
        if self._gap is not None and not self._write(encode(Gap(*self._gap, reason, time.time()))):
            return False
        self.failure, self._gap = "", None
        self._last_words.say(stopped_at=None)
        return True
