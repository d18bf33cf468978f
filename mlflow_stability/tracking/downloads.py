"""List and download the artifacts of a run, without trust in what a server lists.

Guarantees: a path that a server lists is used only where it lies directly in the folder that was asked for; what is
downloaded is a file in the folder given for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from mlflow_stability.errors import TrackingError
from mlflow_stability.tracking.store_errors import sentence
from mlflow_stability.vocabulary.argument import short_repr


@dataclass(frozen=True, slots=True)
class Artifact:
    """A file or folder in an artifact folder."""

    name: str
    is_folder: bool


def artifacts_in(client: MlflowClient, run_id: str, folder: str) -> list[Artifact]:
    """Return what lies directly in an artifact folder. Raises TrackingError for anything outside of it."""
    artifacts = []
    for listed in client.list_artifacts(run_id, folder):
        path = PurePosixPath(listed.path)
        if path.parent != PurePosixPath(folder) or path.name == ".." or "\\" in path.name:
            raise TrackingError(
                f"The server lists {short_repr(listed.path)} in {folder} of run {run_id}, which is outside of it. "
                "Nothing was downloaded."
            )
        artifacts.append(Artifact(path.name, bool(listed.is_dir)))
    return artifacts


def download_file(client: MlflowClient, run_id: str, path: str, to: Path) -> Path:
    """Download an artifact into a folder and return the file."""
    try:
        file = Path(client.download_artifacts(run_id, path, str(to)))
    except MlflowException as error:
        # MLflow reports every failure of a download, as a lost connection, as a missing file.
        folder, _, name = path.rpartition("/")
        if any(artifact.name == name for artifact in artifacts_in(client, run_id, folder)):
            raise TrackingError(f"Could not download {path} of run {run_id}: {sentence(error)}") from error
        raise
    if not file.is_file() or not file.resolve().is_relative_to(to.resolve()):
        raise TrackingError(f"The server sends something else for {path} of run {run_id} than one file.")
    return file
