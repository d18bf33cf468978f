"""Keeps attention maps beside a journal, one file each, for they are too large for its lines.

In: an `AttentionMap` and the folder of a recording. Out: `attention/<attempt>-<step>-<layer>-<mark>.arrays` in it, mode
0600 in 0700; and the map back. Guarantees: a file is there whole or not at all; a full disk leaves no litter and raises
nothing; what is read is what was written, and nothing in a file is ever executed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from mlflow_stability.journal.array_file import SUFFIX, read_arrays, write_arrays
from mlflow_stability.vocabulary.measured import AttentionMap, arrays_of, map_of

FOLDER = "attention"
_NAME = re.compile(r"(\d{4,})-(\d{12,})-(\d{4,})-[0-9a-f]{8}\.arrays")


@dataclass(frozen=True, slots=True, order=True)
class AttentionMapFile:
    """A map that was not read yet; in the order in which they were measured."""

    attempt: int
    step: int
    layer_number: int
    path: Path


def write_attention_map(recording: Path, attention: AttentionMap) -> Path | None:
    """Keep a map; None where there was no room for it."""
    folder = recording / FOLDER
    # Two models that train in one step may both have a first layer.
    mark = blake2b(attention.layer.encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()
    file = folder / f"{attention.attempt:04d}-{attention.step:012d}-{attention.layer_number:04d}-{mark}{SUFFIX}"
    return write_arrays(file, arrays_of(attention))


def attention_map_files(recording: Path) -> list[AttentionMapFile]:
    """The maps that are there, in the order in which they were measured."""
    folder = recording / FOLDER
    if not folder.is_dir():
        return []
    found = ((_NAME.fullmatch(path.name), path) for path in folder.iterdir())
    return sorted(AttentionMapFile(int(name[1]), int(name[2]), int(name[3]), path) for name, path in found if name)


def read_attention_map(file: Path) -> AttentionMap:
    """The map in a file; JournalError where that is damaged or gone."""
    return read_arrays(file, map_of, "attention map")
