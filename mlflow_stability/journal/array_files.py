"""Keep layer tables and attention maps in files beside a journal.

They are too large for its lines. A file is a line of JSON with the name, type and shape of each array, and their bytes
behind it; the CRC-32 of it all comes first, as in a line of the journal. An `.npz` takes four times as long to write,
in the thread that trains.

Guarantees: a file is there whole or not at all, mode 0600 in a folder of 0700; a full disk leaves no litter and raises
nothing; nothing in a file is ever executed.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain, count
from pathlib import Path
from typing import Any, TypeVar
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.errors import JournalError
from mlflow_stability.journal.layout import write_file
from mlflow_stability.vocabulary.measured.layer_arrays import (
    AttentionMap,
    LayerTable,
    attention_arrays,
    attention_map_from,
)

SUFFIX = ".arrays"
_T = TypeVar("_T")


def write_arrays(file: Path, arrays: Mapping[str, NDArray[Any]]) -> Path | None:
    """Write arrays to a file, and make its folder; None where the disk is full."""
    header = json.dumps([(name, array.dtype.str, array.shape) for name, array in arrays.items()]).encode()
    content = b"\n".join((header, b"".join([array.tobytes() for array in arrays.values()])))
    with suppress(OSError):
        file.parent.mkdir(mode=0o700, exist_ok=True)
    return file if write_file(file, b"%08x " % crc32(content) + content) else None


def read_arrays(file: Path, make: Callable[[Mapping[str, NDArray[Any]]], _T], what: str) -> _T:
    """Return what `make` builds from the arrays in a file; JournalError where the file is damaged or gone."""
    try:
        return make(_decode_arrays(file.read_bytes()))
    except (OSError, ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:
        raise JournalError(f"Cannot read the {what} in {file}: {error}") from error


def _decode_arrays(data: bytes) -> dict[str, NDArray[Any]]:
    content = data[9:]
    if data[:9] != b"%08x " % crc32(content):
        raise ValueError("it was cut off or changed")
    header, _, values = content.partition(b"\n")
    arrays: dict[str, NDArray[Any]] = {}
    offset = 0
    for name, kind, shape in json.loads(header):
        if not all(type(size) is int for size in shape):
            raise ValueError(f"the array {name} has no shape")
        count = math.prod(shape)
        array = np.frombuffer(values, np.dtype(kind), count, offset) if count else np.zeros(0, np.dtype(kind))
        arrays[name] = array.reshape(shape).copy()
        offset += array.nbytes
    return arrays


LAYERS_FOLDER = "layers"
_TABLE_NAME = re.compile(r"(\d{12,})-([a-z]+)(-full)?(?:-\d+)?\.arrays")


@dataclass(frozen=True, slots=True, order=True)
class LayerTableFile:
    """The file of a table; sorts by step."""

    step: int
    what: str
    has_histograms: bool
    path: Path


def write_layer_table(recording: Path, table: LayerTable) -> Path | None:
    """Write a table to `layers/STEP-WHAT[-full][-N].arrays`; None where the disk is full.

    `-full` marks histograms, `-N` a further training in the same step.
    """
    folder = recording / LAYERS_FOLDER
    name = f"{table.step:012d}-{table.what}{'-full' if table.has_histograms else ''}"
    names = chain([name], (f"{name}-{number}" for number in count(2)))
    file = next(file for stem in names if not (file := folder / f"{stem}{SUFFIX}").exists())
    # As JSON: NumPy text takes four bytes a letter, and for each text as many as for the longest.
    arrays: dict[str, NDArray[Any]] = {
        "head": np.frombuffer(json.dumps([table.step, table.attempt, table.what, *table.layers]).encode(), np.uint8),
        "statistics": table.statistics,
    }
    if table.has_histograms:
        counts = table.counts.astype(np.min_scalar_type(int(table.counts.max(initial=0))))
        arrays |= {"percentiles": table.percentiles, "edges": table.edges, "counts": counts}
    return write_arrays(file, arrays)


def layer_table_files(recording: Path, after: int = -1, *, settled: bool = False) -> list[LayerTableFile]:
    """Return the files of tables of steps after one, oldest first.

    `settled`: without those of the newest step, of which there may be another table to come.
    """
    folder = recording / LAYERS_FOLDER
    if not folder.is_dir():
        return []
    matches = ((_TABLE_NAME.fullmatch(path.name), path) for path in folder.iterdir())
    files = sorted(LayerTableFile(int(name[1]), name[2], bool(name[3]), path) for name, path in matches if name)
    return [file for file in files if file.step > after and not (settled and file.step == files[-1].step)]


def read_layer_table(file: Path) -> LayerTable:
    """Read a table; JournalError where the file is damaged or gone."""
    return read_arrays(file, _read_table, "table of layers")


def _read_table(arrays: Mapping[str, NDArray[Any]]) -> LayerTable:
    step, attempt, what, *layers = json.loads(arrays["head"].tobytes())
    empty = np.zeros((len(layers), 0))
    percentiles, edges, counts = (arrays.get(name, empty) for name in ("percentiles", "edges", "counts"))
    return LayerTable(
        step, attempt, what, tuple(layers), arrays["statistics"], percentiles, edges, counts.astype(np.int64)
    )


ATTENTION_FOLDER = "attention"
_MAP_NAME = re.compile(r"(\d{4,})-(\d{12,})-(\d{4,})-[0-9a-f]{8}\.arrays")


@dataclass(frozen=True, slots=True, order=True)
class AttentionMapFile:
    """The file of a map; sorts by the time of measurement."""

    attempt: int
    step: int
    layer_number: int
    path: Path


def write_attention_map(recording: Path, attention: AttentionMap) -> Path | None:
    """Write a map to `attention/ATTEMPT-STEP-LAYER-MARK.arrays`; None where the disk is full."""
    folder = recording / ATTENTION_FOLDER
    # Two models that train in one step may both have a first layer: the mark is a hash of its name.
    mark = blake2b(attention.layer.encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()
    file = folder / f"{attention.attempt:04d}-{attention.step:012d}-{attention.layer_number:04d}-{mark}{SUFFIX}"
    return write_arrays(file, attention_arrays(attention))


def attention_map_files(recording: Path) -> list[AttentionMapFile]:
    """Return the files of maps in the order of measurement."""
    folder = recording / ATTENTION_FOLDER
    if not folder.is_dir():
        return []
    matches = ((_MAP_NAME.fullmatch(path.name), path) for path in folder.iterdir())
    return sorted(AttentionMapFile(int(name[1]), int(name[2]), int(name[3]), path) for name, path in matches if name)


def read_attention_map(file: Path) -> AttentionMap:
    """Read a map; JournalError where the file is damaged or gone."""
    return read_arrays(file, attention_map_from, "attention map")
