"""Reads back the attention maps of a run.

In: a run id and where it lives, or a folder of parts. Out: which steps have maps, and the maps of one of them.
Guarantees: only what is asked for is fetched; a folder needs no MLflow; a sentence says what to do where there are
none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mlflow_stability.errors import RunNotFoundError
from mlflow_stability.tracking.artifacts.attention_parts import AttentionPart, attention_part, read_attention_part
from mlflow_stability.tracking.artifacts.folders import MAPS_FOLDER, MAPS_FOLDERS
from mlflow_stability.vocabulary.measured import AttentionMap


@dataclass(frozen=True, slots=True)
class StoredAttention:
    """The attention maps of one run."""

    name: str
    """What people call the run."""
    parts: tuple[AttentionPart, ...]
    """What there is, oldest first."""
    fetch: Callable[[AttentionPart], list[AttentionMap]]

    @property
    def steps(self) -> list[int]:
        """The steps that have maps."""
        return sorted({part.step for part in self.parts})

    def maps(self, step: int) -> list[AttentionMap]:
        """The maps of a step, by layer; of a step that came again the later ones."""
        return self.fetch(max(part for part in self.parts if part.step == step))


def attention_of_run(run_id: str, tracking_uri: str | None = None) -> StoredAttention:
    """The maps of a run in a tracking store."""
    from mlflow_stability.tracking.read.run_reader import RunReader

    reader = RunReader(run_id, tracking_uri)

    folder_of = {name: folder for folder in MAPS_FOLDERS for name in reader.file_names(folder)}

    def fetch(part: AttentionPart) -> list[AttentionMap]:
        return reader.fetched(f"{folder_of[part.name]}/{part.name}", _read)

    return _stored(f"Run {reader.run_id}", reader.name, list(folder_of), fetch)


def attention_of_folder(folder: Path, maps: Path) -> StoredAttention:
    """The maps in a folder of parts, for a run that is kept as files."""
    names = [file.name for file in maps.iterdir()] if maps.is_dir() else []
    return _stored(str(folder), folder.name, names, lambda part: _read(maps / part.name))


def _stored(
    what: str, name: str, files: list[str], fetch: Callable[[AttentionPart], list[AttentionMap]]
) -> StoredAttention:
    parts = sorted(part for each in files if (part := attention_part(each)) is not None)
    if not parts:
        raise RunNotFoundError(
            f"{what} has no attention maps in {MAPS_FOLDER}. autolog() records them every "
            "attention_every_n_steps in models with attention. `mlflow-stability sync` delivers what was "
            "left behind."
        )
    return StoredAttention(name, tuple(parts), fetch)


def _read(file: Path) -> list[AttentionMap]:
    try:
        return read_attention_part(file)
    except (OSError, ValueError) as error:
        raise RunNotFoundError(f"The attention maps cannot be read: {error}") from error
