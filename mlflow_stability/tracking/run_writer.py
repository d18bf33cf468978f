"""Create runs and write points, tags, descriptions and files into one MLflow run.

Guarantees: sending the same points again changes nothing, because each keeps its time; one refused metric does not
block the others; no method waits longer than one request; every failure is a `StabilityError` without credentials.
After a kill between asking the server for a run and its answer, `find_run` returns that run. A kill while MLflow
creates a new database leaves none behind. Facts become parameters `stability.<key>`, which can be set once only: where
a resumed run has another value, the tag `stability.changed_settings` gets a line.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Metric, Param, Run, RunTag
from mlflow.system_metrics import system_metrics_monitor
from mlflow.tracking.default_experiment.registry import get_experiment_id

from mlflow_stability.errors import RunNotFoundError
from mlflow_stability.tracking.address import sqlite_file
from mlflow_stability.tracking.client import RefusedError, store_trouble
from mlflow_stability.tracking.keys import fitting_keys, metric_key
from mlflow_stability.tracking.run_files import RunCheckpoints, RunImages
from mlflow_stability.tracking.tag_names import CHANGED_SETTINGS, DESCRIPTION, PREFIX
from mlflow_stability.tracking.thinning import Point
from mlflow_stability.vocabulary.measured.signal import Signal

HEADING = "### Training stability: "  # start of our summary in a run's description; one or a few words follow
END = "*Kept up to date by mlflow-stability.*"  # end of that summary
LONGEST_DESCRIPTION = 8000  # what MLflow's stores keep of a description
LONGEST_TAG = 5000  # what every store of MLflow takes without cutting
MAX_REFUSALS = 3  # of one key, after which it is not sent again
_SUMMARY = re.compile(rf"^{re.escape(HEADING)}.*?^{re.escape(END)}$", re.DOTALL | re.MULTILINE)


class RunWriter:
    def __init__(self, client: MlflowClient, run_id: str) -> None:
        self.run_id = run_id
        self.refused: dict[str, str] = {}  # what the store refused, and why
        self._client = client
        self._keys: dict[tuple[str, Signal], str] = {}
        self._refusals: dict[str, int] = {}

    def log(self, points: Sequence[Point], prefix: str) -> None:
        metrics = []
        for point in points:
            key = self._keys.get((prefix, point.signal))
            if key is None:
                key = self._keys[prefix, point.signal] = metric_key(point.signal, prefix)
            if self._refusals.get(key, 0) < MAX_REFUSALS:
                metrics.append(Metric(key, float(point.value), round(point.time * 1000), point.step))
        self._log(metrics)

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Set tags; one that is refused does not hold up the others."""
        run_tags = [RunTag(key, value[:LONGEST_TAG]) for key, value in tags.items()]
        try:
            self._send_tags(run_tags)
        except RefusedError:
            self._check_run()
            for tag in run_tags:
                self._try_tag(tag)

    def tags(self) -> dict[str, str]:
        """Return all tags of the run, the user's too."""
        return dict(self._run().data.tags)

    def describe(self, summary: str) -> None:
        """Put a summary into the description of the run, in place of the one before."""
        before = self.tags().get(DESCRIPTION, "")
        after = with_summary(before, summary)
        if after != before:
            self._try_tag(RunTag(DESCRIPTION, after))  # an older store may refuse it

    def page(self) -> str:
        """Return the path of the run in MLflow's UI, behind the address of any server."""
        return f"#/experiments/{self._run().info.experiment_id}/runs/{self.run_id}"

    def upload(self, file: Path, folder: str) -> None:
        """Put a file into the run's artifacts, over an older one of its name."""
        with store_trouble(f"upload {folder}/{file.name}"):
            self._client.log_artifact(self.run_id, str(file), folder)

    def checkpoints(self) -> RunCheckpoints:
        return RunCheckpoints(self._client, self.run_id)

    def images(self) -> RunImages:
        return RunImages(self._client, self.run_id)

    def params(self, number: int) -> RunParams:
        """Return the parameters of the run, as its n-th recording writes them."""
        return RunParams(self, number)

    def existing_params(self) -> dict[str, str]:
        return dict(self._run().data.params)

    def send_params(self, params: list[Param]) -> None:
        with store_trouble(f"log {len(params)} parameters"):
            self._client.log_batch(self.run_id, params=params, synchronous=True)

    def status(self) -> str:
        """Return RUNNING, FINISHED, FAILED, KILLED or SCHEDULED."""
        return str(self._run().info.status)

    def resume(self) -> None:
        """Set the run to running again, as MLflow's own `start_run` does."""
        with store_trouble(f"resume run {self.run_id}"):
            self._client.update_run(self.run_id, status="RUNNING")

    def end(self, status: str, time: float) -> None:
        """End the run with a status; ``time``: 0 for now."""
        with store_trouble(f"set the status of run {self.run_id}"):
            self._client.set_terminated(self.run_id, status, end_time=round(time * 1000) if time else None)

    def _run(self) -> Run:
        with store_trouble(f"read run {self.run_id}"):
            return self._client.get_run(self.run_id)

    def _log(self, metrics: list[Metric]) -> None:
        """Send metrics; halve a batch that is refused until the refused metric is alone."""
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

    def _try_tag(self, tag: RunTag) -> None:
        try:
            self._send_tags([tag])
        except RefusedError as error:
            self.refused[tag.key] = str(error)

    def _check_run(self) -> None:
        """Raise an error for a deleted run, which refuses everything."""
        if self._run().info.lifecycle_stage != "active":
            raise RunNotFoundError(f"Run {self.run_id} was deleted; restore it to deliver the rest.")


LONGEST_PARAM = 6000  # what MLflow's stores take since 2.8
LONGEST_PARAM_BEFORE = 500  # what older servers take
LONGEST_CHANGED_VALUE = 100  # length to which a changed value is cut in the tag
PARAMS_AT_ONCE = 100  # what MLflow's stores take in one request
_CHOSEN = re.compile(
    r"(?:(?:optimizer|group)_\d+\.)*(?:optimizer|learning_rate|weight_decay|betas|momentum|clipping\..+)|optimizer_\d+"
    r"|(?:trial|job)(?:_\w+)?\..+|scheduler|model|batch|accumulation|autocast|parameter_types|seed"
)
_DEFAULTS = {"accumulation": "1", "parameter_types": "float32", "betas": "(0.9, 0.999)", "momentum": "0"}
"""Values that are left out."""


class RunParams:
    """The parameters of one run, as one of its recordings writes them."""

    def __init__(self, writer: RunWriter, number: int) -> None:
        self.refused: dict[str, str] = {}  # what the store refused, and why
        self._writer = writer
        self._number = number
        self._changed: dict[str, str] = {}  # changes of this recording by key, in words

    def write(self, facts: Mapping[str, str]) -> None:
        key_of = fitting_keys(PREFIX + name for name in facts)
        params = {key_of[PREFIX + name]: value for name, value in facts.items()}
        params = {key: value for key, value in params.items() if key not in self.refused}
        existing = self._writer.existing_params()
        new = [Param(key, cut(value)) for key, value in params.items() if key not in existing]
        for begin in range(0, len(new), PARAMS_AT_ONCE):
            self._send_all(new[begin : begin + PARAMS_AT_ONCE])
        self._report_changes(
            {
                key: (existing[key], value)
                for key, value in params.items()
                if key in existing and not _is_same(existing[key], value)
            }
        )

    def _send_all(self, params: list[Param]) -> None:
        """Send params together; if that is refused, each by itself."""
        try:
            self._writer.send_params(params)
        except RefusedError:
            for param in params:
                self._send_one(param)

    def _send_one(self, param: Param) -> None:
        try:
            self._writer.send_params([param])
        except RefusedError as error:
            existing = self._writer.existing_params()
            if param.key in existing:  # another process was faster
                if not _is_same(existing[param.key], param.value):
                    self._report_changes({param.key: (existing[param.key], param.value)})
            elif len(param.value) > LONGEST_PARAM_BEFORE:
                self._send_one(Param(param.key, cut(param.value, LONGEST_PARAM_BEFORE)))
            else:
                self.refused[param.key] = str(error)

    def _report_changes(self, changes: Mapping[str, tuple[str, str]]) -> None:
        """Add changed values to this recording's line of the tag: ``recording 2: seed 2 (was 1)``."""
        if not changes:
            return
        for key, (earlier, value) in changes.items():
            self._changed[key] = f"{key.removeprefix(PREFIX)} {_in_a_line(value)} (was {_in_a_line(earlier)})"
        start = f"recording {self._number + 1}: "
        before = self._writer.tags().get(CHANGED_SETTINGS, "")
        others = [line for line in before.splitlines() if not line.startswith(start)]
        text = "\n".join([*others, start + ", ".join(self._changed.values())])
        self._writer.set_tags({CHANGED_SETTINGS: cut(text, LONGEST_TAG)})


def cut(text: str, longest: int = LONGEST_PARAM) -> str:
    """Return a text that fits: what is too much is replaced in its middle by its length."""
    if len(text) <= longest:
        return text
    mark = f" …({len(text):,} characters)… "
    room = longest - len(mark)
    return text[: room - room // 2] + mark + text[len(text) - room // 2 :]


def _in_a_line(value: str) -> str:
    return cut(" ".join(value.split()), LONGEST_CHANGED_VALUE)


def is_chosen(key: str, value: str) -> bool:
    """Return whether people choose it, so that runs differ by it; the rest is in `environment.json`."""
    return _CHOSEN.fullmatch(key) is not None and value != _DEFAULTS.get(key.rpartition(".")[2])


def _is_same(existing: str, value: str) -> bool:
    """Return whether a value of the run is this one, whole or as it was cut."""
    return existing in (value, cut(value), cut(value, LONGEST_PARAM_BEFORE))


def description_summary(headline: str, paragraphs: list[str]) -> str:
    return "\n\n".join([HEADING + headline, *filter(None, paragraphs), END])


def with_summary(description: str, summary: str) -> str:
    """Return the description with the summary; what the user wrote stays, and the summary is shortened to fit."""
    paragraphs = summary.split("\n\n")
    old = _SUMMARY.search(description)
    while True:
        text = "\n\n".join(paragraphs)
        if old is not None:
            text = description[: old.start()] + text + description[old.end() :]
        elif description.strip():
            text = f"{description.rstrip()}\n\n{text}"
        if len(text) <= LONGEST_DESCRIPTION:
            return text
        if len(paragraphs) <= 2:
            return description
        del paragraphs[-2]


def system_monitor(run_id: str, tracking_uri: str) -> Any:
    """Start MLflow's monitor of one run: metrics ``system/…`` as `mlflow.enable_system_metrics_logging` gives them."""
    module: Any = system_metrics_monitor  # has no types
    # A run that goes on has points already, which are continued.
    monitor = module.SystemMetricsMonitor(run_id, resume_logging=True, tracking_uri=tracking_uri)
    monitor.start()
    return monitor


class TrackingStore:
    def __init__(self, uri: str) -> None:
        file = sqlite_file(uri)
        with store_trouble("open the tracking store"):
            if file is not None and not file.exists():
                _create_database(file)
            self._client = MlflowClient(tracking_uri=uri)

    def writer(self, run_id: str) -> RunWriter:
        return RunWriter(self._client, run_id)

    def experiment(self, experiment_id: str | None) -> str:
        """Return the given experiment, else the one that MLflow itself would use."""
        experiment_id = experiment_id or os.environ.get("MLFLOW_EXPERIMENT_ID")
        if experiment_id:
            return experiment_id
        with store_trouble("find the experiment"):
            if name := os.environ.get("MLFLOW_EXPERIMENT_NAME"):
                experiment = self._client.get_experiment_by_name(name)
                return str(experiment.experiment_id) if experiment else self._client.create_experiment(name)
            return get_experiment_id() or "0"

    def create_run(self, experiment_id: str, tags: Mapping[str, str], started: float) -> str:
        """Create a run and return its id; ``started``: 0 for now."""
        start = round((started or time.time()) * 1000)
        with store_trouble("create a run"):
            run = self._client.create_run(experiment_id, start_time=start, tags=dict(tags))
        return str(run.info.run_id)

    def find_run(self, experiment_id: str, tag: str, holding: str) -> str | None:
        """Return the run whose tag contains this text, or None."""
        condition = f"tags.`{tag}` LIKE '%{holding}%'"
        with store_trouble("look for the run"):
            runs = self._client.search_runs([experiment_id], filter_string=condition, max_results=1)
        return str(runs[0].info.run_id) if runs else None


@lru_cache(maxsize=16)
def tracking_store(uri: str) -> TrackingStore:
    return TrackingStore(uri)


def _create_database(file: Path) -> None:
    """Create MLflow's database beside its place and link it there when complete.

    MLflow itself takes seconds to fill a new file, table by table, and never opens an incomplete one again.
    """
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    try:
        MlflowClient(tracking_uri=f"sqlite:///{draft}").search_experiments(max_results=1)
        file.hardlink_to(draft)
    except FileExistsError:
        return  # another process was faster
    finally:
        for part in file.parent.glob(f"{draft.name}*"):
            part.unlink(missing_ok=True)
