"""Artifact names and file format of attention maps, and artifact names of pictures.

In: the maps of all layers at one step. Out: `stability/data/attention/part-<recording>-<attempt>-<step>.npz`, in
which the arrays of map n are `<n>.weights` and so on; and the maps back. Guarantees: a part is named by its content,
so that sending it twice replaces it; nothing in a part is executed; MLflow is not needed; pictures of a second
recording do not replace those of the first.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.vocabulary.measured import AttentionMap, arrays_of, map_of

_PART = re.compile(r"part-(\d{3,})-(\d{4,})-(\d{12,})\.npz")


@dataclass(frozen=True, slots=True, order=True)
class AttentionPart:
    """Which maps a part holds; in the order in which they were measured."""

    recording: int
    attempt: int
    step: int
    """As the run counts it."""

    @property
    def name(self) -> str:
        """The name of the file."""
        return f"part-{self.recording:03d}-{self.attempt:04d}-{self.step:012d}.npz"


def attention_part(name: str) -> AttentionPart | None:
    """What a file of this name holds; None if it is something else."""
    found = _PART.fullmatch(name)
    return AttentionPart(int(found[1]), int(found[2]), int(found[3])) if found else None


def picture_of_layer(part: AttentionPart, layer: int) -> str:
    """The file name of a layer's picture: `step_000500_layer0.png`; what was measured again gets a name of its own."""
    attempt = f"_attempt{part.attempt}" if part.attempt else ""
    recording = f"-{part.recording + 1}" if part.recording else ""
    return f"step_{part.step:06d}_layer{layer}{attempt}{recording}.png"


def write_attention_part(file: Path, maps: Sequence[AttentionMap], offset: int = 0) -> None:
    """Write maps; `offset` is what the run adds to their steps."""
    arrays: dict[str, NDArray[Any]] = {}
    for number, each in enumerate(maps):
        moved = arrays_of(replace(each, step=each.step + offset))
        arrays |= {f"{number}.{name}": array for name, array in moved.items()}
    np.savez_compressed(file, **arrays)  # type: ignore[arg-type]


def read_attention_part(file: Path) -> list[AttentionMap]:
    """The maps of a part, in the order in which they were written; ValueError where it is damaged."""
    found: dict[int, dict[str, NDArray[Any]]] = {}
    try:
        with np.load(BytesIO(file.read_bytes()), allow_pickle=False) as said:
            for name in said.files:
                number, _, array = name.partition(".")
                found.setdefault(int(number), {})[array] = said[name]
        return [map_of(found[number]) for number in sorted(found)]
    except (KeyError, TypeError, EOFError, zipfile.BadZipFile, ValueError) as error:
        raise ValueError(f"{file.name} holds no attention maps: {error}") from error


def picture_name(name: str, recording: int) -> str:
    """The file of a picture: `dashboard.png`; of a second recording `dashboard-2.png`."""
    return f"{name}.png" if recording == 0 else f"{name}-{recording + 1}.png"
