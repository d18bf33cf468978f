"""The full-resolution record of a run: every signal at every step it was measured, as Parquet files.

In: step readings, in order. Out: parts `stability/data/record/part-<recording>-<offset>.parquet`, one row each:

    recording int32, attempt int32, step int64, time float64 (seconds since the epoch),
    quantity and place (dictionaries of strings), value float64 (NaN and infinities as they are)

Guarantees: a part is named by the place in the journal where it begins, so that one sent twice lands on itself; what
waits to be written takes about 20 bytes a reading and 8 a value.
"""

from __future__ import annotations

import re
from array import array
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from mlflow_stability.tracking.read.run_record import RunRecord
from mlflow_stability.vocabulary.measured import Signal, StepReading

SCHEMA_KEY = b"mlflow_stability.schema"
SCHEMA = 1
_PART = re.compile(r"part-(\d{3,})-(\d{12,})\.parquet")
_NAMES = pa.dictionary(pa.int32(), pa.string())
COLUMNS = pa.schema(
    [
        ("recording", pa.int32()),
        ("attempt", pa.int32()),
        ("step", pa.int64()),
        ("time", pa.float64()),
        ("quantity", _NAMES),
        ("place", _NAMES),
        ("value", pa.float64()),
    ],
    metadata={SCHEMA_KEY: str(SCHEMA).encode()},
)


def part_name(recording: int, offset: int) -> str:
    """The name of the part that begins at this place of the recording's journal."""
    return f"part-{recording:03d}-{offset:012d}.parquet"


def part_order(name: str) -> tuple[int, int] | None:
    """Recording and offset of a part, by which parts are sorted; None if the file is something else."""
    found = _PART.fullmatch(name)
    return (int(found[1]), int(found[2])) if found else None


class PartBuffer:
    """Readings that wait to become a part."""

    def __init__(self) -> None:
        self._layouts: list[tuple[Signal, ...]] = []
        self._newest = 0
        self.clear()

    def __len__(self) -> int:
        """How many observations wait."""
        return len(self._values)

    def clear(self) -> None:
        """Forget the readings: they have been written."""
        self._steps, self._attempts = array("q"), array("i")
        self._times, self._values = array("d"), array("d")
        self._layout_of = array("i")

    @property
    def readings(self) -> int:
        """How many readings wait."""
        return len(self._steps)

    def add(self, reading: StepReading, step: int) -> None:
        """Take a reading in, under the step that the run counts it as."""
        self._steps.append(step)
        self._attempts.append(reading.attempt)
        self._times.append(reading.time)
        self._values.extend(reading.values)
        self._layout_of.append(self._number(reading.signals))

    def write(self, file: Path, recording: int) -> None:
        """Write everything that waits to a Parquet file."""
        numbers: dict[Signal, int] = {}
        codes = [np.array([numbers.setdefault(each, len(numbers)) for each in layout]) for layout in self._layouts]
        layout_of = np.asarray(self._layout_of, np.int32)
        lengths = np.array([len(layout) for layout in self._layouts], np.int64)[layout_of]
        signal = np.concatenate([codes[layout] for layout in layout_of]).astype(np.int32)
        table = pa.Table.from_arrays(
            [
                pa.array(np.full(len(signal), recording, np.int32)),
                pa.array(np.repeat(np.asarray(self._attempts, np.int32), lengths)),
                pa.array(np.repeat(np.asarray(self._steps, np.int64), lengths)),
                pa.array(np.repeat(np.asarray(self._times, np.float64), lengths)),
                _names([each.quantity for each in numbers], signal),
                _names([each.place for each in numbers], signal),
                pa.array(np.asarray(self._values, np.float64)),
            ],
            schema=COLUMNS,
        )
        pq.write_table(table, file, compression="zstd")

    def _number(self, signals: tuple[Signal, ...]) -> int:
        # A journal gives the same tuple for the same layout, mostly the one of the step before: ask for identity.
        if self._layouts and self._layouts[self._newest] is signals:
            return self._newest
        for number, known in enumerate(self._layouts):
            if known is signals:
                self._newest = number
                return number
        self._layouts.append(signals)
        self._newest = len(self._layouts) - 1
        return self._newest


def read_part(file: Path) -> RunRecord:
    """A part as columns."""
    table = pq.read_table(file, schema=COLUMNS)
    if any(table.column(name).null_count for name in table.column_names):
        raise ValueError("columns or values are missing")
    quantity, place = (table.column(name).combine_chunks() for name in ("quantity", "place"))
    names = _pairs(quantity, place)
    pairs, first, signal = np.unique(names, return_index=True, return_inverse=True)
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


def _names(names: list[str], codes: NDArray[np.int32]) -> Any:
    """A column of strings in which each different one is kept once."""
    different = list(dict.fromkeys(names))
    number = np.array([different.index(name) for name in names], np.int32)
    return pa.DictionaryArray.from_arrays(pa.array(number[codes]), pa.array(different, pa.string()))


def _pairs(quantity: Any, place: Any) -> NDArray[np.int64]:
    """One number for each (quantity, place)."""
    high: NDArray[np.int64] = quantity.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    low: NDArray[np.int64] = place.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    return (high << 32) | low
