"""Keeps the checkpoints of a run among its artifacts, and takes them away again.

In: folders of checkpoints. Out: the same under `stability/checkpoints/`. Guarantees: a checkpoint's `meta.json` arrives
last, so that one whose upload broke off is never taken for whole; what is removed is looked for afterwards, because
some artifact stores delete nothing and say nothing.
"""

from __future__ import annotations

import tempfile
from pathlib import Path, PurePosixPath
from typing import Any

from mlflow import MlflowClient
from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

from mlflow_stability.tracking.store.download import bars_on_a_terminal, no_progress_bar
from mlflow_stability.tracking.store.store_errors import RefusedError, store_trouble

CHECKPOINTS_FOLDER = "stability/checkpoints"
META = "meta.json"


class RunCheckpoints:
    """The checkpoints of one run."""

    def __init__(self, client: MlflowClient, run_id: str) -> None:
        self.run_id = run_id
        self._client = client
        self._store: Any = None

    def names(self) -> list[str]:
        """The folders that are there, whole or not."""
        with store_trouble(f"list the checkpoints of run {self.run_id}"):
            listed = self._client.list_artifacts(self.run_id, CHECKPOINTS_FOLDER)
        return sorted(PurePosixPath(each.path).name for each in listed if each.is_dir)

    def upload(self, folder: Path) -> None:
        """Put a checkpoint into the run; again over itself where an upload broke off."""
        place = f"{CHECKPOINTS_FOLDER}/{folder.name}"
        files = sorted(folder.iterdir(), key=lambda file: file.name == META)
        for file in files:
            with store_trouble(f"upload {place}/{file.name}"):
                self._client.log_artifact(self.run_id, str(file), place)

    def remove(self, name: str) -> None:
        """Take a checkpoint out of the run; RefusedError where the store keeps it."""
        place = f"{CHECKPOINTS_FOLDER}/{name}"
        with store_trouble(f"remove {place}"):
            self._artifacts().delete_artifacts(place)
            left = self._client.list_artifacts(self.run_id, place)
        if left:
            raise RefusedError(f"The artifact store of run {self.run_id} did not delete {place}.")

    def download(self, name: str, to: Path) -> Path:
        """Fetch a checkpoint; gives its folder."""
        place = f"{CHECKPOINTS_FOLDER}/{name}"
        folder = to / name
        folder.mkdir(parents=True, exist_ok=True)
        quiet = bars_on_a_terminal()
        with store_trouble(f"download {place}"), quiet, tempfile.TemporaryDirectory(dir=folder) as room:
            for each in self._client.list_artifacts(self.run_id, place):
                file = Path(self._client.download_artifacts(self.run_id, each.path, room))
                file.replace(folder / file.name)
        return folder

    def meta(self, name: str, to: Path) -> Path | None:
        """Fetch only what is known of a checkpoint; None where its upload broke off."""
        place = f"{CHECKPOINTS_FOLDER}/{name}"
        with store_trouble(f"read {place}"):
            found = {PurePosixPath(each.path).name for each in self._client.list_artifacts(self.run_id, place)}
            if META not in found:
                return None
            with no_progress_bar():
                return Path(self._client.download_artifacts(self.run_id, f"{place}/{META}", str(to)))

    def _artifacts(self) -> Any:
        """MLflow's client deletes no artifacts; the store behind it does."""
        if self._store is None:
            uri = self._client.get_run(self.run_id).info.artifact_uri
            self._store = get_artifact_repository(uri, tracking_uri=self._client.tracking_uri)
        return self._store
