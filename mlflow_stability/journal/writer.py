"""Append one line a step to a journal, and never fail the training for it.

Guarantees: a record is one `os.write` on a descriptor opened for appending, so records of a killed process are whole up
to its last one. Where the disk is full, `append` returns False instead of raising, tears no other record, and is tried
again every ten seconds. A forked child writes nothing. Files have mode 0600 in a folder of 0700.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from mlflow_stability.journal.record import Record, encode, encode_layout, encode_step, to_json
from mlflow_stability.vocabulary.measured.signal import Signal, StepReading
from mlflow_stability.vocabulary.run import Closing, Gap, Opening

SLOW_SECONDS = 0.002  # minimum duration of a slow write; on a local disk a write takes 10 µs
SLOW_SHARE = 0.05  # minimum share of the time in slow writes that is reported
MIN_WRITES = 20  # of at least this number of writes, half must be slow


@dataclass(frozen=True, slots=True)
class SlowWrites:
    seconds: float  # mean duration of a slow write
    share: float  # share of the time spent in slow writes


class WriteTimes:
    """Detects that writes hold up the training, as on a slow network file system.

    Occasional slow writes are not reported, nor are writes that wait for a busy thread of the script.
    """

    def __init__(self) -> None:
        self._reported = False
        self._restart(0)

    def add_slow(self, seconds: float) -> None:
        """Count a write that took `SLOW_SECONDS` or more."""
        self._slow += 1
        self._seconds += seconds

    def check(self, writes: int) -> SlowWrites | None:
        """Return the cost of slow writes the first time that it is high; `writes`: number since the journal began."""
        since = writes - self._writes
        if self._reported or since < MIN_WRITES:
            return None
        passed = time.perf_counter() - self._start
        slow, seconds = self._slow, self._seconds
        self._restart(writes)
        if 2 * slow < since or seconds < SLOW_SHARE * passed:
            return None
        cost = SlowWrites(seconds / slow, seconds / passed)
        # A pause of 0.1 ms takes longer where another thread takes the GIL or the processor, not in each of several.
        durations = []
        for _ in range(5):
            start = time.perf_counter()
            time.sleep(1e-4)
            durations.append(time.perf_counter() - start)
        if max(durations) >= cost.seconds / 2:
            return None
        self._reported = True
        return cost

    def _restart(self, writes: int) -> None:
        self._writes, self._slow, self._seconds = writes, 0, 0.0
        self._start = time.perf_counter()


FINAL_STATUS = "last_words.json"
PAGE_BYTES = 4096


class FinalStatusPage:
    """A page that is reserved when a recording begins, so that its end can be written on a full disk.

    It is overwritten in place and never grows. It holds what the journal could not: at which step recording stopped
    and why, and how the training ended.
    """

    def __init__(self, folder: Path) -> None:
        self._values: dict[str, Any] = {}
        self._fd = os.open(folder / FINAL_STATUS, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self.update()
        os.fsync(self._fd)  # so that a file system with delayed allocation reserves the space now

    def update(self, **values: Any) -> None:
        """Add values to the page; long texts are cut until all of it fits."""
        self._values.update(values)
        length = PAGE_BYTES
        while len(text := to_json(_with_short_texts(self._values, length))) >= PAGE_BYTES:
            length //= 2
        os.pwrite(self._fd, text.ljust(PAGE_BYTES - 1) + b"\n", 0)

    def close(self) -> None:
        os.close(self._fd)


def _with_short_texts(value: Any, length: int) -> Any:
    if isinstance(value, dict):
        return {name: _with_short_texts(part, length) for name, part in value.items()}
    return value[:length] if isinstance(value, str) else value


def closing_from_page(page: Mapping[str, Any]) -> Closing | None:
    """Return the closing that did not fit into the journal."""
    values = page.get("closing")
    if not isinstance(values, dict) or "outcome" not in values:
        return None
    return Closing(**{member.name: values[member.name] for member in fields(Closing) if member.name in values})


JOURNAL = "journal"
RETRY_SECONDS = 10.0
MAX_LAYOUTS = 1024  # number of tuples of signals that are recognised by identity; a training has a handful


class JournalWriter:
    def __init__(self, folder: Path, opening: Opening) -> None:
        folder.mkdir(mode=0o700, parents=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        self.folder = folder
        self.failure = ""  # why nothing is being recorded at the moment; empty while all is well
        self.bytes_written = 0
        self._writes, self._times = 0, WriteTimes()
        self._pid = os.getpid()
        self._lock = threading.RLock()
        """Findings of steps that were judged later may be written by another thread than the steps."""
        self._fd = os.open(folder / JOURNAL, flags, 0o600)
        self._final_status = FinalStatusPage(folder)
        self._layouts: dict[tuple[Signal, ...], int] = {}
        self._numbers: dict[int, tuple[int, tuple[Signal, ...]]] = {}
        """The same by the id of the tuple, which is kept here, so that a step hashes no names."""
        self._torn = False
        self._gap: tuple[int, int] | None = None
        self._retry_at = 0.0
        line = encode(opening)
        if not self._write(line):
            raise OSError(self.failure)

    def append(self, record: Record) -> bool:
        """Write a record; False where the disk is full, or this is a forked child."""
        if os.getpid() != self._pid:
            return False
        with self._lock:
            if self.failure and not self._recovered():
                self._missed(record)
                return False
            if not isinstance(record, StepReading):
                written = self._write(encode(record))
            elif (layout := self._numbers.get(id(record.signals))) is not None:
                written = self._write(encode_step(record, layout[0]))
            else:
                written = self._write_with_layout(record)
            if not written:
                self._missed(record)
            return written

    def slow_writes(self) -> SlowWrites | None:
        """Return the cost of slow writes the first time that it is high; to be called now and then."""
        return self._times.check(self._writes)

    def close(self) -> None:
        if os.getpid() != self._pid:  # a fork does not have the thread that may hold the lock
            self._fd = -1
            return
        with self._lock:  # else another thread could write to a file that gets the same descriptor
            if self._fd >= 0:
                os.close(self._fd)
                self._final_status.close()
            self._fd = -1

    def _write_with_layout(self, step: StepReading) -> bool:
        """Write a step whose tuple of signals is new, with its layout."""
        new = len(self._layouts)
        layout = self._layouts.get(step.signals, new)
        if not self._write((encode_layout(layout, step.signals) if layout == new else b"") + encode_step(step, layout)):
            return False
        # After the write: Ctrl-C may interrupt it.
        self._layouts[step.signals] = layout
        if len(self._numbers) >= MAX_LAYOUTS:
            self._numbers.clear()
        self._numbers[id(step.signals)] = layout, step.signals
        return True

    def _write(self, line: bytes) -> bool:
        """Write once; a torn line is ended by a newline before the next one."""
        if self._torn:
            line = b"\n" + line
        self._torn = True  # until the write has returned: Ctrl-C may interrupt it
        start = time.perf_counter()
        try:
            written = os.write(self._fd, line)
        except OSError as error:
            self._failed(error.strerror or str(error))
            return False
        duration = time.perf_counter() - start
        if duration >= SLOW_SECONDS:
            self._times.add_slow(duration)
        self._writes += 1
        self.bytes_written += written
        if written != len(line):  # a full disk gives short writes without an exception
            self._failed(os.strerror(28))
            return False
        self._torn = False
        return True

    def _failed(self, reason: str) -> None:
        self.failure = reason
        self._layouts.clear()  # the torn line may have named them
        self._numbers.clear()
        self._retry_at = time.monotonic() + RETRY_SECONDS

    def _missed(self, record: Record) -> None:
        if isinstance(record, Closing):
            self._final_status.update(closing=asdict(record))
        if isinstance(record, StepReading):
            if self._gap is None:
                self._final_status.update(stopped_at=record.step, reason=self.failure, time=record.time)
            self._gap = (self._gap[0] if self._gap else record.step, record.step)

    def _recovered(self) -> bool:
        """Try again after `RETRY_SECONDS`: where there is space again, write the gap and go on."""
        if time.monotonic() < self._retry_at:
            return False
        reason = self.failure
        if self._gap is not None and not self._write(encode(Gap(*self._gap, reason, time.time()))):
            return False
        self.failure, self._gap = "", None
        self._final_status.update(stopped_at=None)
        return True
