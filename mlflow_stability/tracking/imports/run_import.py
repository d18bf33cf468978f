"""Imports a run read from elsewhere as an MLflow run, once.

In: a `RunHistory` and the name of an experiment. Out: a run id. Guarantees: parameters, tags and metrics keep their
names, non-finite values and times included; the same log is one run, also after it was moved; two existing logs are
two runs, even with equal numbers; an interrupted import is completed by the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import TypeVar

import numpy as np
from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag

from mlflow_stability.errors import TrackingError
from mlflow_stability.tracking.keys import fitting_keys
from mlflow_stability.tracking.store.address import tracking_uri_for
from mlflow_stability.tracking.store.reachable_client import answering_client
from mlflow_stability.tracking.store.run_creation import tracking_store
from mlflow_stability.tracking.store.store_errors import not_mlflow, store_trouble
from mlflow_stability.vocabulary.run import RUN_STATUS, RunHistory

# Not `stability.*`: those tags say that a run was recorded by us, and most imported ones were not.
HASH, STATE, SOURCE = "imported.hash", "imported.state", "imported.from"
TIMES, COUNTED = "imported.times", "counted"
"""A log without times: MLflow needs some, which say nothing of how fast the training was."""
WHOLE = "whole"
LONGEST_SOURCE = 5000
_MOST_ALIKE = 1000


@dataclass(frozen=True, slots=True)
class EarlierImport:
    """A run that an import made, or began to make."""

    run_id: str
    source: str
    """Where it was read from."""
    whole: bool
    """False: its import was killed."""


class EarlierImports:
    """What one experiment has been given so far."""

    def __init__(self, client: MlflowClient, experiment: str) -> None:
        self._client, self._experiment = client, experiment
        self._taken: dict[str, str] = {}
        """Of each run that stands for a log by now, the place of that log."""

    def of(self, history: RunHistory, content: str) -> EarlierImport | None:
        """The run that this history is already: read from the same place, else from one where nothing is any more."""
        place = source_of(history)
        with store_trouble("look for an earlier import"):
            runs = self._client.search_runs([self._experiment], f"tags.`{HASH}` = '{content}'", max_results=_MOST_ALIKE)
        alike = [
            EarlierImport(str(run.info.run_id), run.data.tags.get(SOURCE, ""), run.data.tags.get(STATE, "") == WHOLE)
            for run in runs
        ]
        same = [each for each in alike if self._taken.get(each.run_id, each.source) == place]
        gone = [each for each in alike if each.run_id not in self._taken and not _is_there(each.source)]
        found = next(iter(same or gone), None)
        if found is not None:
            self.stands_for(found.run_id, history)
        return found

    def stands_for(self, run_id: str, history: RunHistory) -> None:
        """From now on this run is that log, and no other one that is like it."""
        self._taken[run_id] = source_of(history)


def source_of(history: RunHistory) -> str:
    """Where a run was read from, whatever the directory it was read in."""
    return str(Path(history.source).absolute())[:LONGEST_SOURCE]


def content_hash(history: RunHistory) -> str:
    """What tells runs apart: everything that was logged, and nothing of where it was found."""
    content = blake2b(digest_size=16)
    for metric in sorted(history.metrics, key=lambda each: each.name):
        series = metric.series
        content.update(repr((metric.name, len(series))).encode("utf-8", "surrogatepass"))
        values = np.where(np.isnan(series.values), np.nan, series.values)  # all not-a-numbers are one
        for column in (series.steps, values, series.attempts, series.times):
            content.update(np.ascontiguousarray(column).tobytes())
    facts = (sorted(history.params.items()), sorted(history.tags.items()), history.outcome)
    content.update(repr(facts).encode("utf-8", "surrogatepass"))
    return content.hexdigest()


def _is_there(source: str) -> bool:
    try:
        return Path(source).exists()
    except (OSError, ValueError):  # a path of another system
        return False


METRICS_AT_ONCE, TEXTS_AT_ONCE = 1000, 100
_LONGEST_PARAM, _LONGEST_TAG = 6000, 5000
# Of another store: they name things that are not here.
_NOT_OURS_TO_SET = frozenset({"mlflow.runName", "mlflow.parentRunId", "mlflow.rootRunId", "mlflow.log-model.history"})
_FORMAT = "imported.format"

_Thing = TypeVar("_Thing")

Progress = Callable[[int], None]
"""Told how many values have arrived so far."""
Remark = Callable[[str], None]
"""Told what a person should know beside the run's id."""


class RunImport:
    """The way into one experiment of one store."""

    def __init__(self, experiment: str, tracking_uri: str | None = None) -> None:
        uri = tracking_uri_for(None, str(Path.cwd()), tracking_uri)
        if uri.startswith(("http://", "https://")):
            self._client = answering_client(uri)
        else:
            tracking_store(uri)  # makes a database that is not there yet
            with store_trouble("open the tracking store"):
                self._client = MlflowClient(tracking_uri=uri)
        self._uri = uri
        self._experiment = self._found_or_made(experiment)
        self._earlier = EarlierImports(self._client, self._experiment)

    def bring(
        self,
        history: RunHistory,
        artifacts: Path | None = None,
        progress: Progress = lambda _: None,
        remark: Remark = lambda _: None,
    ) -> str:
        """Bring a run in, unless it is there; give its id. `artifacts`: a folder to put beside its metrics."""
        content = content_hash(history)
        earlier = self._earlier.of(history, content)
        if earlier is None:
            run_id = self._create(history, content)
        elif earlier.whole:
            progress(history.points)
            if earlier.source != source_of(history):
                remark(
                    f"{history.source} is already imported as run {earlier.run_id} from {earlier.source}, "
                    "which no longer exists."
                )
            return earlier.run_id
        else:
            run_id = earlier.run_id
        self._write(run_id, history, progress)
        if artifacts is not None and artifacts.is_dir():
            with store_trouble(f"upload {artifacts.name}"):
                self._client.log_artifacts(run_id, str(artifacts), artifacts.name)
        with store_trouble(f"end run {run_id}"):
            status = RUN_STATUS.get(history.outcome, "FINISHED")
            self._client.set_terminated(run_id, status, end_time=_last_time(history, self._started(run_id)))
            self._client.set_tag(run_id, STATE, WHOLE)
        return run_id

    def _found_or_made(self, name: str) -> str:
        with store_trouble(f"find experiment {name}"):
            found = self._client.get_experiment_by_name(name)
            if found is None:
                return str(self._client.create_experiment(name))
        if found.name != name:
            raise not_mlflow(self._uri)
        if found.lifecycle_stage != "active":
            raise TrackingError(f"Experiment {name} was deleted. Restore it, or pass another --experiment NAME.")
        return str(found.experiment_id)

    def _create(self, history: RunHistory, content: str) -> str:
        tags = {HASH: content, STATE: "begun", SOURCE: source_of(history), _FORMAT: history.format}
        if not all(metric.series.times.all() for metric in history.metrics):
            tags[TIMES] = COUNTED
        with store_trouble("create a run"):
            run = self._client.create_run(self._experiment, _first_time(history), tags, run_name=history.name[:250])
        self._earlier.stands_for(str(run.info.run_id), history)
        return str(run.info.run_id)

    def _started(self, run_id: str) -> int:
        with store_trouble(f"read run {run_id}"):
            return int(self._client.get_run(run_id).info.start_time)

    def _write(self, run_id: str, history: RunHistory, progress: Progress) -> None:
        params = [Param(key, text) for key, text in _fitting_texts(history.params, _LONGEST_PARAM)]
        tags = {key: text for key, text in history.tags.items() if key not in _NOT_OURS_TO_SET and text.strip()}
        if history.notes and "mlflow.note.content" not in tags:
            tags["mlflow.note.content"] = "\n".join(history.notes)
        labels = [RunTag(key, text) for key, text in _fitting_texts(tags, _LONGEST_TAG)]
        with store_trouble(f"write to run {run_id}"):
            for some in _batches(iter(params), TEXTS_AT_ONCE):
                self._client.log_batch(run_id, params=some, synchronous=True)
            for few in _batches(iter(labels), TEXTS_AT_ONCE):
                self._client.log_batch(run_id, tags=few, synchronous=True)
            done = 0
            for points in _batches(_points(history, self._started(run_id)), METRICS_AT_ONCE):
                self._client.log_batch(run_id, metrics=points, synchronous=True)
                done += len(points)
                progress(done)


def _points(history: RunHistory, started: int) -> Iterator[Metric]:
    """All values with their times; where the source knows none, a millisecond a step from the start of the run."""
    keys = fitting_keys([metric.name for metric in history.metrics])
    for metric in history.metrics:
        series = metric.series
        if not len(series):
            continue
        times = np.round(series.times * 1000).astype(np.int64)
        if not series.times.all():
            again = np.flatnonzero(np.diff(series.attempts) > 0)
            past = np.zeros(len(series), np.int64)
            for place in again:  # an attempt begins after the one before it
                past[place + 1 :] += max(1, int(series.steps[place] - series.steps[place + 1]) + 1)
            counted = np.arange(len(series))  # no two at one time: a store would take equal values for one
            times = started + np.maximum.accumulate(series.steps - series.steps[0] + past - counted) + counted
        columns = (series.values.tolist(), times.tolist(), series.steps.tolist())
        for value, time, step in zip(*columns, strict=True):
            yield Metric(keys[metric.name], value, time, step)


def _batches(things: Iterator[_Thing], size: int) -> Iterator[list[_Thing]]:
    while some := list(islice(things, size)):
        yield some


def _fitting_texts(texts: Mapping[str, str], longest: int) -> Iterator[tuple[str, str]]:
    keys = fitting_keys(texts)
    return ((keys[key], text[:longest]) for key, text in texts.items())


def _first_time(history: RunHistory) -> int | None:
    times = [float(metric.series.times.min()) for metric in history.metrics if len(metric.series)]
    return round(min(times) * 1000) if times and min(times) > 0 else None


def _last_time(history: RunHistory, started: int) -> int:
    times = [float(metric.series.times.max()) for metric in history.metrics if len(metric.series)]
    return max(started, round(max(times, default=0) * 1000))
