"""The journal of a recording: its format, and the only place that knows it; how it is written and read meanwhile.

A journal is a text file. Each line is

    CRC JSON \\n

where CRC is the CRC-32 of the JSON as 8 hexadecimal digits, one space behind it. The JSON is an array whose first
element says what the line is:

    ["open", {…}]                                        the first line: fields of `Opening`, `schema` among them
    ["layout", number, [[quantity, place], …]]           names, written once; readings refer to them by number
    ["step", step, attempt, time, layout, [value, …]]    one capture: the values in the order of the layout's names
    ["event", {…}]  ["note", {…}]  ["fact", {…}]  ["reset", {…}]  ["gap", {…}]
    ["returned", {…}]  ["close", {…}]

A value is a JSON number; NaN and the infinities, which JSON has not, are the strings "nan", "inf" and "-inf". A line
whose CRC does not fit is not data: it was torn by a full disk or a kill. Fields may be added to the objects and kinds
of lines may be added without a new schema number, for readers pass over what they do not know.

Guarantees of the writer: a record is one `os.write` on a descriptor opened for appending, so records of a killed
process are whole up to its last one. Where the disk is full, `append` returns False instead of raising, tears no other
record, and is tried again every ten seconds. A forked child writes nothing. Files have mode 0600 in a folder of 0700.

Guarantees of the follower: an incomplete last line is left for later, a broken line is skipped and counted, and neither
is returned as data; a journal that was deleted ends with what was read of it.
"""

from __future__ import annotations

import itertools
import math
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias
from zlib import crc32

import orjson

from mlflow_stability.errors import JournalError
from mlflow_stability.kinds.finding_records import as_record, from_record
from mlflow_stability.vocabulary.measured.signal import Signal, StepReading
from mlflow_stability.vocabulary.result import Finding
from mlflow_stability.vocabulary.run import Closing, Fact, Gap, Note, Opening, Reset, Returned

SCHEMA = 1
Record: TypeAlias = StepReading | Finding | Opening | Note | Fact | Reset | Gap | Returned | Closing

_KINDS: dict[str, type[Any]] = {
    "open": Opening,
    "event": Finding,
    "note": Note,
    "fact": Fact,
    "reset": Reset,
    "gap": Gap,
    "returned": Returned,
    "close": Closing,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}
_FIELDS = {name: frozenset(member.name for member in fields(kind)) for name, kind in _KINDS.items()}


NO_RECORD = (LookupError, TypeError, ValueError, AttributeError, OverflowError)
"""What decoding raises where a line is whole, and its JSON has not the form of a record."""


class BrokenLineError(ValueError):
    """The line was torn, or refers to a lost one."""


def frame(payload: bytes) -> bytes:
    """One line of the journal around a JSON text."""
    return b"%08x %b\n" % (crc32(payload), payload)


def unframe(line: bytes) -> list[Any]:
    """Return the JSON array of a line without its newline; BrokenLineError if the line was torn."""
    payload = line[9:]
    if len(line) < 10 or line[:9] != b"%08x " % crc32(payload):
        raise BrokenLineError
    try:
        values = orjson.loads(payload)
    except orjson.JSONDecodeError:
        raise BrokenLineError from None
    if not isinstance(values, list) or not values:
        raise BrokenLineError
    return values


def to_json(value: Any) -> bytes:
    """Encode JSON whose texts may be invalid Unicode: a folder's name, an error message."""
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError:
        return orjson.dumps(_with_valid_unicode(value))


def _with_valid_unicode(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_with_valid_unicode(key): _with_valid_unicode(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_with_valid_unicode(item) for item in value]
    return value


def encode_layout(number: int, signals: Sequence[Signal]) -> bytes:
    return frame(to_json(["layout", number, [[signal.quantity, signal.place] for signal in signals]]))


def decode_layout(values: list[Any]) -> tuple[int, tuple[Signal, ...]]:
    return values[1], tuple(Signal(quantity, place) for quantity, place in values[2])


def encode_step(reading: StepReading, layout: int) -> bytes:
    values: Sequence[float | str] = reading.values
    if not math.isfinite(sum(reading.values)):  # one cheap test for all values; an overflow of the sum only costs time
        values = [value if math.isfinite(value) else repr(float(value)) for value in reading.values]
    payload = orjson.dumps(["step", reading.step, reading.attempt, reading.time, layout, values])
    return b"%08x %b\n" % (crc32(payload), payload)  # inlined `frame`, because this runs at each step


def decode_step(line: list[Any], layouts: dict[int, tuple[Signal, ...]]) -> StepReading:
    """Return the reading of a step line; BrokenLineError if the line that names its signals was lost."""
    _, step, attempt, time, layout, values = line
    signals = layouts.get(layout)
    if signals is None or len(signals) != len(values) or type(step) is not int or type(attempt) is not int:
        raise BrokenLineError
    return StepReading(step, signals, tuple(map(float, values)), attempt, time)


def encode(record: Record) -> bytes:
    """Return the line of any record but a step's, which needs its layout."""
    values = as_record(record) | {"severity": int(record.severity)} if isinstance(record, Finding) else asdict(record)
    return frame(to_json([_NAMES[type(record)], values]))


def decode(values: list[Any]) -> Record | None:
    """Return the record of a line that is no step and no layout; None for kinds of lines of later versions."""
    name = values[0]
    kind = _KINDS.get(name)
    if kind is None:
        return None
    if kind is Finding:
        return from_record(values[1])
    record: Record = kind(**{key: value for key, value in values[1].items() if key in _FIELDS[name]})
    return record


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


@dataclass(frozen=True, slots=True)
class Entry:
    """A record, and the position in the file after it."""

    record: Record
    end: int


class JournalFollower:
    """Reader of one journal. It begins at the first line, because later lines refer to names there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.position = 0  # the position up to which lines were read
        self.broken_lines = 0
        self._layouts: dict[int, tuple[Signal, ...]] = {}

    def fork(self) -> JournalFollower:
        """Return another follower at the same position."""
        other = JournalFollower(self.path)
        other.position, other._layouts = self.position, dict(self._layouts)
        return other

    def read(self, limit: int = 100_000, until: int | None = None) -> list[Entry]:
        """Return the next records, at most `limit`, of lines that begin before the position `until`.

        Returns an empty list when there are none yet, or the journal was deleted.
        """
        try:
            file = self.path.open("rb")
        except FileNotFoundError:
            return []
        with file:
            file.seek(self.position)
            return list(itertools.islice(self._entries(file, until), limit))

    def _entries(self, file: BinaryIO, until: int | None) -> Iterator[Entry]:
        for line in file:
            if not line.endswith(b"\n") or (until is not None and self.position >= until):
                return
            self.position += len(line)
            if line == b"\n":  # closes off a torn line
                continue
            try:
                record = self._record(line[:-1])
            except (BrokenLineError, *NO_RECORD):
                self.broken_lines += 1
                continue
            if record is not None:
                yield Entry(record, self.position)

    def _record(self, line: bytes) -> Record | None:
        values = unframe(line)
        if values[0] == "step":
            return decode_step(values, self._layouts)
        if values[0] == "layout":
            number, signals = decode_layout(values)
            self._layouts[number] = signals
            return None
        record = decode(values)
        if isinstance(record, Opening) and record.schema > SCHEMA:
            raise JournalError(
                f"{self.path} has format {record.schema}; this version reads up to {SCHEMA}. Update "
                "mlflow-stability to deliver it."
            )
        return record


def read_journal(path: Path) -> list[Record]:
    follower = JournalFollower(path)
    records: list[Record] = []
    while entries := follower.read():
        records.extend(entry.record for entry in entries)
    return records


def is_deleted(folder: Path) -> bool:
    """Whether the journal of a recording was deleted; False where the file system does not answer."""
    try:
        (folder / JOURNAL).stat()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return False


def journal_size(folder: Path) -> int:
    """Return the size of a recording's journal in bytes; 0 where it was deleted."""
    try:
        return (folder / JOURNAL).stat().st_size
    except FileNotFoundError:
        return 0


def opening_if_readable(folder: Path) -> Opening | None:
    """Return the first record of a recording; None where it is missing or unreadable."""
    try:
        return opening_of(folder)
    except JournalError:
        return None


def opening_of(folder: Path) -> Opening | None:
    """Return the first record of a recording; None where it is not written yet."""
    try:
        first = JournalFollower(folder / JOURNAL).read(1)
    except OSError as error:
        raise JournalError(f"The journal in {folder} cannot be read: {error}") from error
    return first[0].record if first and isinstance(first[0].record, Opening) else None
