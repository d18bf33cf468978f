"""Read back the attention maps of a run, or of a folder, which needs no MLflow."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from mlflow_stability.errors import RunNotFoundError
from mlflow_stability.tracking.artifacts import (
    MAPS_FOLDER,
    MAPS_FOLDERS,
    AttentionPart,
    attention_part,
    read_attention_part,
)
from mlflow_stability.vocabulary.measured.layer_arrays import AttentionMap


@dataclass(frozen=True, slots=True)
class StoredAttention:
    name: str
    """What people call the run."""
    parts: tuple[AttentionPart, ...]
    """Oldest first."""
    fetch: Callable[[AttentionPart], list[AttentionMap]]

    @property
    def steps(self) -> list[int]:
        return sorted({part.step for part in self.parts})

    def maps(self, step: int) -> list[AttentionMap]:
        """Fetch the maps of a step by layer; of a step that was repeated, the later ones."""
        return self.fetch(max(part for part in self.parts if part.step == step))


def attention_of_run(run_id: str, tracking_uri: str | None = None) -> StoredAttention:
    from mlflow_stability.tracking.read.run_reader import RunReader

    reader = RunReader(run_id, tracking_uri)
    folder_of = {name: folder for folder in MAPS_FOLDERS for name in reader.file_names(folder)}
    return StoredAttention(
        reader.name,
        _parts(f"Run {reader.run_id}", folder_of),
        lambda part: reader.fetched(f"{folder_of[part.name]}/{part.name}", _read),
    )


def attention_of_folder(folder: Path, maps: Path) -> StoredAttention:
    """Return the maps in a folder of parts, for a run that is kept as files."""
    names = [file.name for file in maps.iterdir()] if maps.is_dir() else []
    return StoredAttention(folder.name, _parts(str(folder), names), lambda part: _read(maps / part.name))


def _parts(source: str, names: Iterable[str]) -> tuple[AttentionPart, ...]:
    parts = sorted(part for name in names if (part := attention_part(name)) is not None)
    if not parts:
        raise RunNotFoundError(
            f"{source} has no attention maps in {MAPS_FOLDER}. autolog() records them every "
            "attention_every_n_steps in models with attention. `mlflow-stability sync` delivers what was "
            "left behind."
        )
    return tuple(parts)


def _read(file: Path) -> list[AttentionMap]:
    try:
        return read_attention_part(file)
    except (OSError, ValueError) as error:
        raise RunNotFoundError(f"The attention maps cannot be read: {error}") from error
