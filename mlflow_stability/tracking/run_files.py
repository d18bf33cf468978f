"""Put checkpoints, pictures and reports among a run's artifacts, and a comparison into a run of its own; download them.

Guarantees: a path that a server lists is used only where it lies directly in the folder that was asked for; what is
downloaded is a file in the folder given for it.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

import mlflow
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException
from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

from mlflow_stability.errors import StabilityError, TrackingError
from mlflow_stability.tracking.client import (
    RefusedError,
    answering_client,
    bars_on_a_terminal,
    experiment_by_id,
    no_progress_bar,
    sentence,
    store_trouble,
)
from mlflow_stability.tracking.tag_names import COMPARISON, DESCRIPTION
from mlflow_stability.vocabulary.argument import short_repr

CHECKPOINTS_FOLDER = "stability/checkpoints"
META = "meta.json"
REPORT_FOLDER = "stability"
COMPARISON_NAME = "stability comparison"
LONGEST_IMAGE_NAME = 90
"""MLflow's files are named by key, step, time and a number of 36 characters, and have 255 in all."""
_UNFIT = re.compile(r"[^a-zA-Z0-9_\-.]")  # what MLflow takes, without what would be a folder
# `<key>+step+<step>+timestamp+<milliseconds>+<uuid>+compressed.webp`, in older versions with % between them: the small
# picture, which MLflow sends last. https://github.com/mlflow/mlflow/issues/21085
# A / in a key is ~ there, in older versions #.
_IMAGE = re.compile(r"(?P<key>.+)[+%]step[+%](?P<step>\d+)[+%]timestamp[+%](?P<time>\d+)[+%][^+%]*[+%]compressed\.webp")


class RunCheckpoints:
    """The checkpoints of one run, in `stability/checkpoints/`.

    Guarantees: a checkpoint's `meta.json` arrives last, so that an incomplete upload is never taken for whole; what is
    removed is looked for afterwards, because some artifact stores delete nothing without an error.
    """

    def __init__(self, client: MlflowClient, run_id: str) -> None:
        self.run_id = run_id
        self._client = client

    def names(self) -> list[str]:
        """Return the folders that are there, complete or not."""
        with store_trouble(f"list the checkpoints of run {self.run_id}"):
            artifacts = artifacts_in(self._client, self.run_id, CHECKPOINTS_FOLDER)
        return sorted(artifact.name for artifact in artifacts if artifact.is_folder)

    def upload(self, folder: Path) -> None:
        """Put a checkpoint into the run, over an incomplete upload of it."""
        place = f"{CHECKPOINTS_FOLDER}/{folder.name}"
        for file in sorted(folder.iterdir(), key=lambda file: file.name == META):
            with store_trouble(f"upload {place}/{file.name}"):
                self._client.log_artifact(self.run_id, str(file), place)

    def remove(self, name: str) -> None:
        """Remove a checkpoint. Raises RefusedError if the store keeps it."""
        place = f"{CHECKPOINTS_FOLDER}/{name}"
        with store_trouble(f"remove {place}"):
            self._artifact_store.delete_artifacts(place)
            remaining = artifacts_in(self._client, self.run_id, place)
        if remaining:
            raise RefusedError(f"The artifact store of run {self.run_id} did not delete {place}.")

    def download(self, name: str, to: Path) -> Path:
        place = f"{CHECKPOINTS_FOLDER}/{name}"
        folder = to / name
        folder.mkdir(parents=True, exist_ok=True)
        bars = bars_on_a_terminal()
        with store_trouble(f"download {place}"), bars, tempfile.TemporaryDirectory(dir=folder) as temporary:
            for artifact in artifacts_in(self._client, self.run_id, place):
                file = download_file(self._client, self.run_id, f"{place}/{artifact.name}", Path(temporary))
                file.replace(folder / artifact.name)
        return folder

    def meta(self, name: str, to: Path) -> Path | None:
        """Download only a checkpoint's `meta.json`; None if its upload is incomplete."""
        place = f"{CHECKPOINTS_FOLDER}/{name}"
        with store_trouble(f"read {place}"):
            if META not in {artifact.name for artifact in artifacts_in(self._client, self.run_id, place)}:
                return None
            with no_progress_bar():
                return download_file(self._client, self.run_id, f"{place}/{META}", to)

    @cached_property
    def _artifact_store(self) -> Any:
        """The store behind MLflow's client, which cannot delete artifacts."""
        uri = self._client.get_run(self.run_id).info.artifact_uri
        return get_artifact_repository(uri, tracking_uri=self._client.tracking_uri)


def image_key(prefix: str, topic: str, number: int, name: str) -> str:
    """Return the key of a picture, `stability/attention/L00_blocks.0.attn`; unfit names get a short hash.

    The number comes first because MLflow cuts the title of a card after some twenty characters, and sorts cards by it.
    """
    fit = _UNFIT.sub("_", name)
    if fit != name or len(fit) > LONGEST_IMAGE_NAME or not fit.strip("."):
        mark = blake2b(name.encode("utf-8", "surrogatepass"), digest_size=5).hexdigest()
        fit = f"{fit[: LONGEST_IMAGE_NAME - len(mark) - 1]}-{mark}".lstrip(".")
    return f"{prefix}/{topic}/L{number:02d}_{fit}"


class RunImages:
    """The pictures in the charts of one run, which MLflow shows with a slider over the steps.

    Guarantees: the same picture is logged once, by any number of couriers.
    """

    def __init__(self, client: MlflowClient, run_id: str) -> None:
        self.run_id = run_id
        self._client = client

    def steps(self, topic: str) -> set[int]:
        """Return the steps that have a picture of a topic: `stability/attention`."""
        return {step for key, step, _ in self._logged if key.startswith(f"{topic}/")}

    def holds(self, key: str, step: int, time: float) -> bool:
        return (key, step, round(time * 1000)) in self._logged

    def log(self, file: Path, key: str, step: int, time: float) -> None:
        if self.holds(key, step, time):
            return
        milliseconds = round(time * 1000)
        with store_trouble(f"log the image {key}"):
            image = mlflow.Image(str(file))
            self._client.log_image(self.run_id, image, key=key, step=step, timestamp=milliseconds, synchronous=True)
        self._logged.add((key, step, milliseconds))

    @cached_property
    def _logged(self) -> set[tuple[str, int, int]]:
        """Key, step and time of each picture."""
        with store_trouble(f"list the images of run {self.run_id}"):
            files = artifacts_in(self._client, self.run_id, "images")
        matches = (_IMAGE.fullmatch(file.name) for file in files)
        return {
            (re.sub("[~#]", "/", match["key"]), int(match["step"]), int(match["time"])) for match in matches if match
        }


def log_report(run_id: str, tracking_uri: str | None, files: Mapping[str, str]) -> Path | None:
    """Write each text into the run under its file name; return the folder if it is on this machine."""
    client = answering_client(tracking_uri)
    with tempfile.TemporaryDirectory(prefix="mlflow-stability-") as folder:
        for name, text in files.items():
            file = Path(folder, name)
            file.write_text(text, encoding="utf-8")
            with store_trouble(f"add {name} to run {run_id}"):
                client.log_artifact(run_id, str(file), REPORT_FOLDER)
    with store_trouble(f"read run {run_id}"):
        root = client.get_run(run_id).info.artifact_uri
    parts = urlsplit(root)
    if parts.scheme:
        return Path(unquote(parts.path), REPORT_FOLDER) if parts.scheme == "file" else None
    return Path(root, REPORT_FOLDER)


def log_comparison(experiment: str, tracking_uri: str | None, files: Mapping[str, str], summary: str) -> str:
    """Write each text into a new run of the experiment and return its id; it is marked as no training."""
    client = answering_client(tracking_uri)
    with store_trouble(f"add a run to experiment {experiment}"):
        existing = client.get_experiment_by_name(experiment) or experiment_by_id(client, experiment)
        experiment_id = client.create_experiment(experiment) if existing is None else existing.experiment_id
        tags = {COMPARISON: "true", DESCRIPTION: summary}
        run_id = str(client.create_run(experiment_id, tags=tags, run_name=COMPARISON_NAME).info.run_id)
    try:
        log_report(run_id, tracking_uri, files)
    except BaseException:  # the run is never left running
        with suppress(StabilityError), store_trouble(f"finish run {run_id}"):
            answering_client(tracking_uri).set_terminated(run_id, "FAILED")
        raise
    with store_trouble(f"finish run {run_id}"):
        client.set_terminated(run_id)
    return run_id


@dataclass(frozen=True, slots=True)
class Artifact:
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
