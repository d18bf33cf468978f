"""The tables of layers of a run, as Parquet files.

In: tables, oldest first. Out: parts `stability/data/layers/part-<recording>-<step>.parquet`, one row for each layer
of each table; a column for each statistic and percentile, `edges` and `counts` as lists:

    recording int32, attempt int32, step int64, what and layer (dictionaries of strings),
    mean, std, abs_max, zeros, min, p1, ..., max float64; edges list of float64; counts list of int64

Where only the statistics were measured, percentiles, edges and counts are null. Guarantees: a part is named by the step
of its first table, so that one sent twice, or again with more behind it, lands on itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from mlflow_stability.vocabulary.measured import PERCENTILES, STATISTICS, LayerTable

SCHEMA_KEY = b"mlflow_stability.schema"
SCHEMA = 1
_NAMES = pa.dictionary(pa.int32(), pa.string())
COLUMNS = pa.schema(
    [
        ("recording", pa.int32()),
        ("attempt", pa.int32()),
        ("step", pa.int64()),
        ("what", _NAMES),
        ("layer", _NAMES),
        *((name, pa.float64()) for name in (*STATISTICS, *PERCENTILES)),
        ("edges", pa.list_(pa.float64())),
        ("counts", pa.list_(pa.int64())),
    ],
    metadata={SCHEMA_KEY: str(SCHEMA).encode()},
)


def layer_part_name(recording: int, step: int) -> str:
    """The name of the part whose first table is of this step."""
    return f"part-{recording:03d}-{step:012d}.parquet"


def write_layer_part(file: Path, tables: Sequence[LayerTable], recording: int, offset: int = 0) -> None:
    """Write tables; `offset` is what the run adds to their steps."""
    parts = [_rows(table, recording, offset) for table in tables]
    pq.write_table(pa.concat_tables(parts).unify_dictionaries(), file, compression="zstd")


def read_layer_part(file: Path) -> list[LayerTable]:
    """The tables of a part, in the order in which they were written."""
    rows = pq.read_table(file, schema=COLUMNS)
    what = rows.column("what").cast(pa.string()).to_numpy(zero_copy_only=False)
    step = rows.column("step").to_numpy()
    cuts = np.flatnonzero((step[1:] != step[:-1]) | (what[1:] != what[:-1])) + 1
    edges = [0, *cuts.tolist(), len(rows)]
    return [_table(rows.slice(begin, end - begin)) for begin, end in pairwise(edges) if end > begin]


def _rows(table: LayerTable, recording: int, offset: int) -> pa.Table:
    count = len(table.layers)
    nothing = pa.nulls(count, pa.float64())
    columns: dict[str, Any] = {
        "recording": np.full(count, recording, np.int32),
        "attempt": np.full(count, table.attempt, np.int32),
        "step": np.full(count, table.step + offset, np.int64),
        "what": pa.array([table.what] * count, pa.string()).dictionary_encode(),
        "layer": pa.array(table.layers, pa.string()).dictionary_encode(),
    }
    columns |= {name: table.statistics[:, number] for number, name in enumerate(STATISTICS)}
    for number, name in enumerate(PERCENTILES):
        columns[name] = table.percentiles[:, number] if table.has_histograms else nothing
    for name, cells in (("edges", table.edges), ("counts", table.counts)):
        kind = COLUMNS.field(name).type
        columns[name] = pa.array(list(cells), kind) if table.has_histograms else pa.nulls(count, kind)
    return pa.table(
        [pa.array(columns[name]) if isinstance(columns[name], np.ndarray) else columns[name] for name in COLUMNS.names],
        schema=COLUMNS,
    )


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
