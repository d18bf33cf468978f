"""Keeps the tables of layers beside a journal, one file each, for they are too large for its lines.

In: a `LayerTable` and the folder of a recording. Out: `layers/<step>-<what>.arrays` in it, `<step>-<what>-full.arrays`
where it has histograms, mode 0600 in 0700; a second training in that step has `…-2.arrays`; and the table back.
Guarantees: a file is there whole or not at all; a full disk leaves no litter and raises nothing; what is read is what
was written, and nothing in a file is ever executed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.journal.array_file import SUFFIX, read_arrays, write_arrays
from mlflow_stability.vocabulary.measured import LayerTable

FOLDER = "layers"
_NAME = re.compile(r"(\d{12,})-([a-z]+)(-full)?(?:-\d+)?\.arrays")


@dataclass(frozen=True, slots=True, order=True)
class LayerTableFile:
    """A table that was not read yet; in the order of steps."""

    step: int
    what: str
    has_histograms: bool
    path: Path


def write_layer_table(recording: Path, table: LayerTable) -> Path | None:
    """Keep a table; None where there was no room for it."""
    folder = recording / FOLDER
    name = f"{table.step:012d}-{table.what}{'-full' if table.has_histograms else ''}"
    names = chain([name], (f"{name}-{number}" for number in count(2)))
    file = next(file for each in names if not (file := folder / f"{each}{SUFFIX}").exists())
    arrays: dict[str, NDArray[Any]] = {
        "head": _bytes([table.step, table.attempt, table.what, *table.layers]),
        "statistics": table.statistics,
    }
    if table.has_histograms:
        counts = table.counts.astype(np.min_scalar_type(int(table.counts.max(initial=0))))
        arrays |= {"percentiles": table.percentiles, "edges": table.edges, "counts": counts}
    return write_arrays(file, arrays)


def layer_table_files(recording: Path) -> list[LayerTableFile]:
    """The tables that are there, oldest first."""
    folder = recording / FOLDER
    if not folder.is_dir():
        return []
    found = ((_NAME.fullmatch(path.name), path) for path in folder.iterdir())
    return sorted(LayerTableFile(int(name[1]), name[2], bool(name[3]), path) for name, path in found if name)


def read_layer_table(file: Path) -> LayerTable:
    """The table in a file; JournalError where that is damaged or gone."""
    return read_arrays(file, _table_of, "table of layers")


def _table_of(said: Mapping[str, NDArray[Any]]) -> LayerTable:
    step, attempt, what, *layers = json.loads(said["head"].tobytes())
    none = np.zeros((len(layers), 0))
    percentiles, edges, counts = (said.get(name, none) for name in ("percentiles", "edges", "counts"))
    return LayerTable(
        step, attempt, what, tuple(layers), said["statistics"], percentiles, edges, counts.astype(np.int64)
    )


def _bytes(said: list[int | str]) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """JSON as an array, for arrays of text take four bytes a letter and as many as the longest for each."""
    return np.frombuffer(json.dumps(said).encode(), np.uint8)
