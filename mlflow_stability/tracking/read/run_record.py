"""The record of a run as columns, one row per value in the order of measurement, and as Parquet files.

Every value of every step is in parts `stability/data/record/part-<recording>-<offset>.parquet`, a row for each value:

    recording int32, attempt int32, step int64, time float64 (seconds since the epoch),
    quantity and place (dictionaries of strings), value float64 (NaN and infinities as they are)

Tables of layers are in parts `stability/data/layers/part-<recording>-<step>.parquet`, a row for each layer of each
table, with a column for each statistic and percentile:

    recording int32, attempt int32, step int64, what and layer (dictionaries of strings),
    mean, std, abs_max, zeros, min, p1, ..., max float64; edges list of float64; counts list of int64

Where only the statistics were measured, percentiles, edges and counts are null. Guarantees: a part is named by its
place in the journal or its first step, so that one sent twice replaces itself.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from mlflow_stability.vocabulary.measured.layer_arrays import PERCENTILES, STATISTICS, LayerTable
from mlflow_stability.vocabulary.measured.signal import Signal, StepReading
from mlflow_stability.vocabulary.result import Finding

STEPS_AROUND = 100  # number of steps before and after an event, and at both ends of the record, that are kept whole
EVENTS_OF_A_KIND = 5  # number of events of each kind whose surroundings are kept
MIN_VALUES = 2000  # a signal with fewer values than this in a part is kept whole
_MAX_EVERY = 2**20


@dataclass(frozen=True, slots=True, eq=False)
class RunRecord:
    """Arrays of equal length."""

    signals: tuple[Signal, ...]  # in the order in which they first appeared
    recording: NDArray[np.int32]
    attempt: NDArray[np.int32]
    step: NDArray[np.int64]
    time: NDArray[np.float64]
    signal: NDArray[np.int32]  # index into `signals`
    value: NDArray[np.float64]
    complete: bool = True
    """Whether this is every value that was measured; False: only the points of MLflow's metric tables are left."""
    every: int = 1  # of signals with many values, every how many are here: a long record can be read thinned

    def __len__(self) -> int:
        return len(self.value)

    def rows(self, rows: NDArray[np.bool_]) -> RunRecord:
        names = ("recording", "attempt", "step", "time", "signal", "value")
        return replace(self, **{name: getattr(self, name)[rows] for name in names})

    def readings(self) -> Iterator[StepReading]:
        """Yield the rows as they were journalled.

        Trainings side by side have several readings in a step, each with a time of its own.
        """
        if not len(self):
            return
        place = np.stack([self.recording, self.attempt, self.step])
        is_new = np.any(np.diff(place, axis=1) != 0, axis=0) | (np.diff(self.time) != 0)
        layouts: dict[bytes, tuple[Signal, ...]] = {}
        for block in np.split(np.arange(len(self)), np.flatnonzero(is_new) + 1):
            codes = self.signal[block]
            layout = layouts.get(codes.tobytes())
            if layout is None:
                layout = layouts[codes.tobytes()] = tuple(self.signals[code] for code in codes)
            first = block[0]
            yield StepReading(
                int(self.step[first]),
                layout,
                tuple(self.value[block].tolist()),
                int(self.attempt[first]),
                float(self.time[first]),
            )


def joined(records: list[RunRecord]) -> RunRecord:
    """Return several records as one, with one numbering of signals."""
    numbers: dict[Signal, int] = {}
    codes = []
    for record in records:
        number_of = np.array([numbers.setdefault(signal, len(numbers)) for signal in record.signals], np.int32)
        codes.append(number_of[record.signal])
    return RunRecord(
        tuple(numbers),
        np.concatenate([record.recording for record in records]),
        np.concatenate([record.attempt for record in records]),
        np.concatenate([record.step for record in records]),
        np.concatenate([record.time for record in records]),
        np.concatenate(codes),
        np.concatenate([record.value for record in records]),
        all(record.complete for record in records),
    )


def whole_number(stored: int | float | bytes) -> int:
    """Return a step or time of a metric's point as an integer.

    A script that logs ``step=numpy.int64(5)`` into a SQLite store writes a blob, which MLflow returns as bytes.
    """
    if isinstance(stored, bytes):
        return int.from_bytes(stored, "little", signed=True)
    return int(stored)


class RecordThinner:
    """Reads a record of any length, part by part, into bounded memory.

    Of signals with many values, every second, fourth, ... is kept, until about `max_values` are left. Guarantees:
    values around events, the first and the last ones are all kept; the same parts give the same record.
    """

    def __init__(self, max_values: int, events: Iterable[Finding]) -> None:
        self._max_values = max_values
        self._every = 1
        self._parts: list[RunRecord] = []
        counts: Counter[str] = Counter()
        steps = []
        for event in events:
            counts[event.kind] += 1
            if counts[event.kind] <= EVENTS_OF_A_KIND:
                steps.append(event.step)
        self._event_steps = np.unique(np.asarray(steps, np.int64))

    def add(self, part: RunRecord) -> None:
        self._parts.append(self._thinned(part, self._every))
        while sum(map(len, self._parts)) > self._max_values and self._every < _MAX_EVERY:
            self._every *= 2
            self._parts = [self._thinned(kept, 2) for kept in self._parts]

    def record(self) -> RunRecord | None:
        """Return the whole record; None if there was no part."""
        return replace(joined(self._parts), every=self._every) if self._parts else None

    def _thinned(self, part: RunRecord, every: int) -> RunRecord:
        if every == 1 or not len(part):
            return part
        rows = np.argsort(part.signal, kind="stable")
        counts = np.bincount(part.signal, minlength=len(part.signals))
        starts = np.repeat(np.cumsum(counts) - counts, counts)
        ordinal = np.empty(len(part), np.int64)
        ordinal[rows] = np.arange(len(part)) - starts
        steps = part.step
        near: NDArray[np.bool_] = (steps < steps[0] + STEPS_AROUND) | (steps > steps[-1] - STEPS_AROUND)
        if len(self._event_steps):
            place = np.searchsorted(self._event_steps, steps)
            after = self._event_steps[np.minimum(place, len(self._event_steps) - 1)]
            before = self._event_steps[np.maximum(place - 1, 0)]
            near |= (np.abs(after - steps) <= STEPS_AROUND) | (np.abs(steps - before) <= STEPS_AROUND)
        return part.rows((ordinal % every == 0) | (counts[part.signal] < MIN_VALUES) | near)


SCHEMA_KEY = b"mlflow_stability.schema"
SCHEMA = 1
_PART = re.compile(r"part-(\d{3,})-(\d{12,})\.parquet")
_NAMES = pa.dictionary(pa.int32(), pa.string())
_POSITION = [("recording", pa.int32()), ("attempt", pa.int32()), ("step", pa.int64())]
RECORD_COLUMNS = pa.schema(
    [*_POSITION, ("time", pa.float64()), ("quantity", _NAMES), ("place", _NAMES), ("value", pa.float64())],
    metadata={SCHEMA_KEY: str(SCHEMA).encode()},
)
LAYER_COLUMNS = pa.schema(
    [
        *_POSITION,
        ("what", _NAMES),
        ("layer", _NAMES),
        *((name, pa.float64()) for name in (*STATISTICS, *PERCENTILES)),
        ("edges", pa.list_(pa.float64())),
        ("counts", pa.list_(pa.int64())),
    ],
    metadata={SCHEMA_KEY: str(SCHEMA).encode()},
)


def part_name(recording: int, offset: int) -> str:
    """Return the name of the part that begins at this offset of the recording's journal, or at this step."""
    return f"part-{recording:03d}-{offset:012d}.parquet"


def part_order(name: str) -> tuple[int, int] | None:
    """Return recording and offset of a part, to sort by; None for other files."""
    match = _PART.fullmatch(name)
    return (int(match[1]), int(match[2])) if match else None


class PartBuffer:
    """Readings that wait to become a part, in about 20 bytes each and 8 a value."""

    def __init__(self) -> None:
        self._layouts: list[tuple[Signal, ...]] = []
        self._newest = 0
        self.clear()

    def __len__(self) -> int:
        return len(self._values)

    def clear(self) -> None:
        self._steps, self._attempts = array("q"), array("i")
        self._times, self._values = array("d"), array("d")
        self._layout_of = array("i")

    @property
    def readings(self) -> int:
        return len(self._steps)

    def add(self, reading: StepReading, step: int) -> None:
        """Add a reading; ``step``: as the run counts it."""
        self._steps.append(step)
        self._attempts.append(reading.attempt)
        self._times.append(reading.time)
        self._values.extend(reading.values)
        self._layout_of.append(self._layout_number(reading.signals))

    def write(self, file: Path, recording: int) -> None:
        numbers: dict[Signal, int] = {}
        codes = [np.array([numbers.setdefault(signal, len(numbers)) for signal in layout]) for layout in self._layouts]
        layout_of = np.asarray(self._layout_of, np.int32)
        lengths = np.array([len(layout) for layout in self._layouts], np.int64)[layout_of]
        signal_codes = np.concatenate([codes[layout] for layout in layout_of]).astype(np.int32)
        table = pa.Table.from_arrays(
            [
                pa.array(np.full(len(signal_codes), recording, np.int32)),
                pa.array(np.repeat(np.asarray(self._attempts, np.int32), lengths)),
                pa.array(np.repeat(np.asarray(self._steps, np.int64), lengths)),
                pa.array(np.repeat(np.asarray(self._times, np.float64), lengths)),
                _dictionary_column([signal.quantity for signal in numbers], signal_codes),
                _dictionary_column([signal.place for signal in numbers], signal_codes),
                pa.array(np.asarray(self._values, np.float64)),
            ],
            schema=RECORD_COLUMNS,
        )
        pq.write_table(table, file, compression="zstd")

    def _layout_number(self, signals: tuple[Signal, ...]) -> int:
        # A journal gives the same tuple for the same layout, mostly that of the step before: compare by identity.
        if self._layouts and self._layouts[self._newest] is signals:
            return self._newest
        for number, layout in enumerate(self._layouts):
            if layout is signals:
                self._newest = number
                return number
        self._layouts.append(signals)
        self._newest = len(self._layouts) - 1
        return self._newest


def read_part(file: Path) -> RunRecord:
    table = _read_columns(file, RECORD_COLUMNS)
    if any(table.column(name).null_count for name in table.column_names):
        raise ValueError("columns or values are missing")
    quantity, place = (table.column(name).combine_chunks() for name in ("quantity", "place"))
    high, low = (codes.indices.to_numpy(zero_copy_only=False).astype(np.int64) for codes in (quantity, place))
    pairs, first, signal = np.unique((high << 32) | low, return_index=True, return_inverse=True)
    order = np.argsort(first)  # in order of first appearance
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    quantities, places = quantity.dictionary.to_pylist(), place.dictionary.to_pylist()
    signals = tuple(Signal(quantities[pair >> 32], places[pair & 0xFFFFFFFF]) for pair in pairs[order].tolist())
    return RunRecord(
        signals,
        table.column("recording").to_numpy(),
        table.column("attempt").to_numpy(),
        table.column("step").to_numpy(),
        table.column("time").to_numpy(),
        rank[signal].astype(np.int32),
        table.column("value").to_numpy(),
    )


def _read_columns(file: Path, columns: pa.Schema) -> pa.Table:
    """Read a file; ArrowException or ValueError where it is damaged, as in its last bytes, which name its columns."""
    with pa.OSFile(str(file)) as opened:
        try:
            table = pq.read_table(opened, schema=columns)
            table.validate(full=True)  # also that all codes of names have a name
            return table
        except OSError as error:  # what pyarrow calls bytes that it cannot decode
            raise ValueError(f"{file.name} is damaged: {error}") from error


def _dictionary_column(names: list[str], codes: NDArray[np.int32]) -> Any:
    """Return a column of strings that keeps each different one once."""
    different = list(dict.fromkeys(names))
    numbers = np.array([different.index(name) for name in names], np.int32)
    return pa.DictionaryArray.from_arrays(pa.array(numbers[codes]), pa.array(different, pa.string()))


def write_layer_part(file: Path, tables: Sequence[LayerTable], recording: int, offset: int = 0) -> None:
    """Write tables of layers; `offset` is what the run adds to their steps."""
    parts = [_rows(table, recording, offset) for table in tables]
    pq.write_table(pa.concat_tables(parts).unify_dictionaries(), file, compression="zstd")


def read_layer_part(file: Path) -> list[LayerTable]:
    """Return the tables of a part in the order in which they were written."""
    rows = _read_columns(file, LAYER_COLUMNS)
    what = rows.column("what").cast(pa.string()).to_numpy(zero_copy_only=False)
    step = rows.column("step").to_numpy()
    cuts = np.flatnonzero((step[1:] != step[:-1]) | (what[1:] != what[:-1])) + 1
    edges = [0, *cuts.tolist(), len(rows)]
    return [_table(rows.slice(begin, end - begin)) for begin, end in pairwise(edges) if end > begin]


def _rows(table: LayerTable, recording: int, offset: int) -> pa.Table:
    count = len(table.layers)
    columns: dict[str, Any] = {
        "recording": np.full(count, recording, np.int32),
        "attempt": np.full(count, table.attempt, np.int32),
        "step": np.full(count, table.step + offset, np.int64),
        "what": pa.array([table.what] * count, pa.string()).dictionary_encode(),
        "layer": pa.array(table.layers, pa.string()).dictionary_encode(),
    }
    columns |= {name: table.statistics[:, number] for number, name in enumerate(STATISTICS)}
    if table.has_histograms:
        columns |= {name: table.percentiles[:, number] for number, name in enumerate(PERCENTILES)}
        columns |= {"edges": list(table.edges), "counts": list(table.counts)}
    arrays = []
    for field in LAYER_COLUMNS:
        column = columns.get(field.name)
        if column is None:
            column = pa.nulls(count, field.type)
        arrays.append(column if isinstance(column, pa.Array) else pa.array(column, field.type))
    return pa.table(arrays, schema=LAYER_COLUMNS)


def _table(rows: pa.Table) -> LayerTable:
    def numbers(names: tuple[str, ...]) -> np.ndarray[Any, np.dtype[np.float64]]:
        return np.stack([rows.column(name).to_numpy() for name in names], axis=1)

    count = len(rows)
    full = rows.column("counts").null_count == 0
    return LayerTable(
        int(rows.column("step")[0].as_py()),
        int(rows.column("attempt")[0].as_py()),
        str(rows.column("what")[0].as_py()),
        tuple(rows.column("layer").cast(pa.string()).to_pylist()),
        numbers(STATISTICS),
        numbers(PERCENTILES) if full else np.empty((count, 0)),
        np.array(rows.column("edges").to_pylist(), np.float64) if full else np.empty((count, 0)),
        np.array(rows.column("counts").to_pylist(), np.int64) if full else np.empty((count, 0), np.int64),
    )
