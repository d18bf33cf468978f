"""Writes points, tags and files into one MLflow run, and starts its system metrics.

In: points, tags, files. Out: the same in the run; metrics ``system/…`` as `mlflow.enable_system_metrics_logging`
gives them. Guarantees: sending the same points again changes nothing, because each keeps its time; one refused metric
does not block the others; no method waits longer than one request; every failure is a `StabilityError` without
credentials.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Metric, RunTag
from mlflow.system_metrics import system_metrics_monitor

from mlflow_stability.errors import RunNotFoundError
from mlflow_stability.tracking.keys import metric_key
from mlflow_stability.tracking.store.store_errors import RefusedError, store_trouble
from mlflow_stability.tracking.tag_names import DESCRIPTION
from mlflow_stability.tracking.write.run_checkpoints import RunCheckpoints
from mlflow_stability.tracking.write.run_description import with_section
from mlflow_stability.tracking.write.run_images import RunImages
from mlflow_stability.tracking.write.run_params import RunParams
from mlflow_stability.tracking.write.thinning import Point
from mlflow_stability.vocabulary.measured import Signal

_LONGEST_TAG = 5000  # the least that MLflow's stores take without cutting
_GIVE_UP_AFTER = 3  # refusals of one key, after which it is not offered again


class RunWriter:
    """The way into one run."""

    def __init__(self, client: MlflowClient, run_id: str) -> None:
        self.run_id = run_id
        self.refused: dict[str, str] = {}
        """What the store would not take, and why."""
        self._client = client
        self._keys: dict[tuple[str, Signal], str] = {}
        self._refusals: dict[str, int] = {}

    def log(self, points: Sequence[Point], section: str) -> None:
        """Send points as metrics."""
        metrics = [
            Metric(self._key(section, point.signal), float(point.value), round(point.time * 1000), point.step)
            for point in points
        ]
        self._log([each for each in metrics if self._refusals.get(each.key, 0) < _GIVE_UP_AFTER])

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Set tags; one that is refused does not hold up the others."""
        found = [RunTag(key, value[:_LONGEST_TAG]) for key, value in tags.items()]
        try:
            self._send_tags(found)
        except RefusedError:
            self._check_run()
            for tag in found:
                self._send_tag(tag)

    def tags(self) -> dict[str, str]:
        """All tags of the run, the user's too."""
        with store_trouble(f"read run {self.run_id}"):
            return dict(self._client.get_run(self.run_id).data.tags)

    def describe(self, section: str) -> None:
        """Put a section into the description of the run, in place of the one before."""
        with store_trouble(f"read run {self.run_id}"):
            before = self._client.get_run(self.run_id).data.tags.get(DESCRIPTION, "")
        after = with_section(before, section)
        if after != before:
            try:
                self._send_tags([RunTag(DESCRIPTION, after)])
            except RefusedError as error:  # an older store takes less
                self.refused[DESCRIPTION] = str(error)

    def page(self) -> str:
        """The page of the run in MLflow's UI, behind the address of whatever server shows it."""
        with store_trouble(f"read run {self.run_id}"):
            return f"#/experiments/{self._client.get_run(self.run_id).info.experiment_id}/runs/{self.run_id}"

    def upload(self, file: Path, folder: str) -> None:
        """Put a file into the run's artifacts, over an older one of its name."""
        with store_trouble(f"upload {folder}/{file.name}"):
            self._client.log_artifact(self.run_id, str(file), folder)

    def checkpoints(self) -> RunCheckpoints:
        """The way of checkpoints into the same run."""
        return RunCheckpoints(self._client, self.run_id)

    def images(self) -> RunImages:
        """The way of pictures into the charts of the same run."""
        return RunImages(self._client, self.run_id)

    def params(self, number: int) -> RunParams:
        """The way of facts into the same run, for its n-th recording."""
        return RunParams(self._client, self.run_id, number)

    def status(self) -> str:
        """RUNNING, FINISHED, FAILED, KILLED or SCHEDULED."""
        with store_trouble(f"read the status of run {self.run_id}"):
            return str(self._client.get_run(self.run_id).info.status)

    def resume(self) -> None:
        """Say that the run goes on, as MLflow's own `start_run` does with one that had ended."""
        with store_trouble(f"resume run {self.run_id}"):
            self._client.update_run(self.run_id, status="RUNNING")

    def end(self, status: str, time: float) -> None:
        """Give the run the status with which it ended, and when."""
        with store_trouble(f"set the status of run {self.run_id}"):
            self._client.set_terminated(self.run_id, status, end_time=round(time * 1000) if time else None)

    def _key(self, section: str, signal: Signal) -> str:
        key = self._keys.get((section, signal))
        if key is None:
            key = self._keys[section, signal] = metric_key(signal, section)
        return key

    def _log(self, metrics: list[Metric]) -> None:
        """Send metrics; of a batch that is refused, halves, until the one stands alone that nobody wants."""
        if not metrics:
            return
        try:
            with store_trouble(f"log {len(metrics)} metrics"):
                self._client.log_batch(self.run_id, metrics=metrics, synchronous=True)
        except RefusedError as error:
            if len(metrics) > 1:
                half = len(metrics) // 2
                self._log(metrics[:half])
                self._log(metrics[half:])
                return
            self._check_run()
            key = metrics[0].key
            self._refusals[key] = self._refusals.get(key, 0) + 1
            self.refused[key] = str(error)

    def _send_tags(self, tags: list[RunTag]) -> None:
        with store_trouble(f"set {len(tags)} tags"):
            self._client.log_batch(self.run_id, tags=tags, synchronous=True)

    def _send_tag(self, tag: RunTag) -> None:
        try:
            self._send_tags([tag])
        except RefusedError as error:
            self.refused[tag.key] = str(error)

    def _check_run(self) -> None:
        """A deleted run refuses everything: that is not the metric's fault."""
        with store_trouble(f"read run {self.run_id}"):
            stage = self._client.get_run(self.run_id).info.lifecycle_stage
        if stage != "active":
            raise RunNotFoundError(f"Run {self.run_id} was deleted; restore it to deliver the rest.")


_monitors: Any = system_metrics_monitor  # it carries no types


class SystemMetrics:
    """MLflow's monitor of one run."""

    def __init__(self, run_id: str, tracking_uri: str) -> None:
        # A run that goes on has points already: theirs are followed, not written over.
        self._monitor = _monitors.SystemMetricsMonitor(run_id, resume_logging=True, tracking_uri=tracking_uri)
        self._monitor.start()

    def finish(self) -> None:
        """End the measurements and send what is left of them."""
        self._monitor.finish()
