"""Import a run read from elsewhere as an MLflow run, once.

Guarantees: parameters, tags and metrics keep their names, non-finite values and times included; the same log is one
run, also after it was moved; two existing logs are two runs, even with equal values; an interrupted import is completed
by the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import TypeVar

import numpy as np
from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag

from mlflow_stability.errors import TrackingError
from mlflow_stability.tracking.address import tracking_uri_for
from mlflow_stability.tracking.client import answering_client, not_mlflow, store_trouble
from mlflow_stability.tracking.keys import fitting_keys
from mlflow_stability.tracking.run_writer import tracking_store
from mlflow_stability.vocabulary.run import RUN_STATUS, RunHistory

# Not `stability.*`: those tags mark runs that this package recorded, and most imported ones were not.
HASH, STATE, SOURCE, FORMAT = "imported.hash", "imported.state", "imported.from", "imported.format"
TIMES, COUNTED = "imported.times", "counted"
"""Tag of a log without times: MLflow needs some, which do not show how fast the training was."""
WHOLE = "whole"
LONGEST_SOURCE = 5000
LONGEST_PARAM, LONGEST_TAG = 6000, 5000
METRICS_AT_ONCE, TEXTS_AT_ONCE = 1000, 100
MAX_ALIKE = 1000
# These name things of the other store.
_TAGS_OF_STORE = frozenset({"mlflow.runName", "mlflow.parentRunId", "mlflow.rootRunId", "mlflow.log-model.history"})
_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class EarlierImport:
    run_id: str
    source: str  # where it was read from
    whole: bool  # False if its import was killed


class EarlierImports:
    def __init__(self, client: MlflowClient, experiment: str) -> None:
        self._client, self._experiment = client, experiment
        self._sources: dict[str, str] = {}  # the source of each run that this process imported or matched

    def match(self, history: RunHistory, content: str) -> EarlierImport | None:
        """Return the earlier import of this history: from the same place, or from one that no longer exists."""
        place = source_of(history)
        with store_trouble("look for an earlier import"):
            runs = self._client.search_runs([self._experiment], f"tags.`{HASH}` = '{content}'", max_results=MAX_ALIKE)
        alike = [
            EarlierImport(str(run.info.run_id), run.data.tags.get(SOURCE, ""), run.data.tags.get(STATE, "") == WHOLE)
            for run in runs
        ]
        same = [earlier for earlier in alike if self._sources.get(earlier.run_id, earlier.source) == place]
        gone = [earlier for earlier in alike if earlier.run_id not in self._sources and not _exists(earlier.source)]
        match = next(iter(same or gone), None)
        if match is not None:
            self.remember(match.run_id, history)
        return match

    def remember(self, run_id: str, history: RunHistory) -> None:
        """Reserve this run for this log, so that no other log like it is taken for it."""
        self._sources[run_id] = source_of(history)


def source_of(history: RunHistory) -> str:
    """Return where a run was read from, as an absolute path."""
    return str(Path(history.source).absolute())[:LONGEST_SOURCE]


def content_hash(history: RunHistory) -> str:
    """Return a hash of everything that was logged, without where it was read."""
    content = blake2b(digest_size=16)
    for metric in sorted(history.metrics, key=lambda metric: metric.name):
        series = metric.series
        content.update(repr((metric.name, len(series))).encode("utf-8", "surrogatepass"))
        values = np.where(np.isnan(series.values), np.nan, series.values)  # all NaNs have the same bits
        for column in (series.steps, values, series.attempts, series.times):
            content.update(np.ascontiguousarray(column).tobytes())
    facts = (sorted(history.params.items()), sorted(history.tags.items()), history.outcome)
    content.update(repr(facts).encode("utf-8", "surrogatepass"))
    return content.hexdigest()


def _exists(source: str) -> bool:
    try:
        return Path(source).exists()
    except (OSError, ValueError):  # a path of another system
        return False


class RunImport:
    def __init__(self, experiment: str, tracking_uri: str | None = None) -> None:
        uri = tracking_uri_for(None, str(Path.cwd()), tracking_uri)
        if uri.startswith(("http://", "https://")):
            self._client = answering_client(uri)
        else:
            tracking_store(uri)  # creates a missing database
            with store_trouble("open the tracking store"):
                self._client = MlflowClient(tracking_uri=uri)
        self._experiment = _experiment_named(self._client, experiment, uri)
        self._earlier = EarlierImports(self._client, self._experiment)

    def bring(
        self,
        history: RunHistory,
        artifacts: Path | None = None,
        progress: Callable[[int], None] = lambda _: None,
        remark: Callable[[str], None] = lambda _: None,
    ) -> str:
        """Import a run unless that was done, and return its id.

        `artifacts`: a folder to upload with it. `progress` gets the number of values that have arrived; `remark` gets
        a sentence for the user.
        """
        content = content_hash(history)
        earlier = self._earlier.match(history, content)
        if earlier is not None and earlier.whole:
            progress(history.points)
            if earlier.source != source_of(history):
                remark(
                    f"{history.source} is already imported as run {earlier.run_id} from {earlier.source}, "
                    "which no longer exists."
                )
            return earlier.run_id
        run_id = self._create(history, content) if earlier is None else earlier.run_id
        with store_trouble(f"read run {run_id}"):
            started = int(self._client.get_run(run_id).info.start_time)
        self._write(run_id, history, started, progress)
        if artifacts is not None and artifacts.is_dir():
            with store_trouble(f"upload {artifacts.name}"):
                self._client.log_artifacts(run_id, str(artifacts), artifacts.name)
        times = [float(metric.series.times.max()) for metric in history.metrics if len(metric.series)]
        end = max(started, round(max(times, default=0) * 1000))
        with store_trouble(f"end run {run_id}"):
            self._client.set_terminated(run_id, RUN_STATUS.get(history.outcome, "FINISHED"), end_time=end)
            self._client.set_tag(run_id, STATE, WHOLE)
        return run_id

    def _create(self, history: RunHistory, content: str) -> str:
        tags = {HASH: content, STATE: "begun", SOURCE: source_of(history), FORMAT: history.format}
        if not all(metric.series.times.all() for metric in history.metrics):
            tags[TIMES] = COUNTED
        times = [float(metric.series.times.min()) for metric in history.metrics if len(metric.series)]
        start = round(min(times) * 1000) if times and min(times) > 0 else None
        with store_trouble("create a run"):
            run = self._client.create_run(self._experiment, start, tags, run_name=history.name[:250])
        self._earlier.remember(str(run.info.run_id), history)
        return str(run.info.run_id)

    def _write(self, run_id: str, history: RunHistory, started: int, progress: Callable[[int], None]) -> None:
        params = [Param(key, text) for key, text in _fitting_texts(history.params, LONGEST_PARAM)]
        texts = {key: text for key, text in history.tags.items() if key not in _TAGS_OF_STORE and text.strip()}
        if history.notes and "mlflow.note.content" not in texts:
            texts["mlflow.note.content"] = "\n".join(history.notes)
        tags = [RunTag(key, text) for key, text in _fitting_texts(texts, LONGEST_TAG)]
        with store_trouble(f"write to run {run_id}"):
            for some_params in _batches(params, TEXTS_AT_ONCE):
                self._client.log_batch(run_id, params=some_params, synchronous=True)
            for some_tags in _batches(tags, TEXTS_AT_ONCE):
                self._client.log_batch(run_id, tags=some_tags, synchronous=True)
            done = 0
            for points in _batches(_points(history, started), METRICS_AT_ONCE):
                self._client.log_batch(run_id, metrics=points, synchronous=True)
                done += len(points)
                progress(done)


def _experiment_named(client: MlflowClient, name: str, uri: str) -> str:
    with store_trouble(f"find experiment {name}"):
        experiment = client.get_experiment_by_name(name)
        if experiment is None:
            return str(client.create_experiment(name))
    if experiment.name != name:
        raise not_mlflow(uri)
    if experiment.lifecycle_stage != "active":
        raise TrackingError(f"Experiment {name} was deleted. Restore it, or pass another --experiment NAME.")
    return str(experiment.experiment_id)


def _points(history: RunHistory, started: int) -> Iterator[Metric]:
    """Yield all values with their times; without any, a millisecond a step from the start of the run."""
    keys = fitting_keys([metric.name for metric in history.metrics])
    for metric in history.metrics:
        series = metric.series
        if not len(series):
            continue
        times = np.round(series.times * 1000).astype(np.int64)
        if not series.times.all():
            earlier = np.zeros(len(series), np.int64)
            for place in np.flatnonzero(np.diff(series.attempts) > 0):  # an attempt begins after the one before it
                earlier[place + 1 :] += max(1, int(series.steps[place] - series.steps[place + 1]) + 1)
            count = np.arange(len(series))  # no two at one time: a store would take equal values for one
            times = started + np.maximum.accumulate(series.steps - series.steps[0] + earlier - count) + count
        columns = (series.values.tolist(), times.tolist(), series.steps.tolist())
        for value, time, step in zip(*columns, strict=True):
            yield Metric(keys[metric.name], value, time, step)


def _batches(items: Iterable[_Item], size: int) -> Iterator[list[_Item]]:
    iterator = iter(items)
    while batch := list(islice(iterator, size)):
        yield batch


def _fitting_texts(texts: Mapping[str, str], longest: int) -> Iterator[tuple[str, str]]:
    keys = fitting_keys(texts)
    return ((keys[key], text[:longest]) for key, text in texts.items())
