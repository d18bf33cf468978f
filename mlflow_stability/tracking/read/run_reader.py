"""Read everything that MLflow holds of a run, whoever recorded it: record, events, metric points, artifacts.

Guarantees: a run recorded by this package has its full record and the events found while it trained, if they are there.
Other runs have the complete histories of their metrics, never a sample. Infinities are infinite even where a store kept
the largest number.
"""

from __future__ import annotations

import logging
import math
import tempfile
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import TypeAlias, TypeVar

import mlflow
import numpy as np
import pyarrow as pa
from mlflow import MlflowClient
from mlflow.entities import Metric as StoredMetric
from mlflow.entities import Run
from mlflow.exceptions import MlflowException
from numpy.typing import NDArray

from mlflow_stability.errors import RunNotFoundError
from mlflow_stability.tracking.address import strip_credentials
from mlflow_stability.tracking.artifacts import (
    EVENTS_FOLDERS,
    LAYER_TABLES_FOLDERS,
    RECORD_FOLDER,
    RECORD_FOLDERS,
    EventLine,
    events_order,
    read_events,
)
from mlflow_stability.tracking.client import answering_client, no_progress_bar, not_mlflow, sentence, store_trouble
from mlflow_stability.tracking.keys import parse_key
from mlflow_stability.tracking.read.recorded_history import (
    RecordedLine,
    RunFacts,
    ending,
    events_of,
    gaps_of,
    notes_of,
    recorded_history,
    settings_of,
    with_left_out,
    with_metrics_of_the_script,
)
from mlflow_stability.tracking.read.run_record import (
    RecordThinner,
    RunRecord,
    joined,
    part_order,
    read_layer_part,
    read_part,
    whole_number,
)
from mlflow_stability.tracking.run_files import artifacts_in, download_file
from mlflow_stability.tracking.run_import import COUNTED, TIMES
from mlflow_stability.tracking.tag_names import is_recorded
from mlflow_stability.vocabulary.measured.layer_arrays import LayerTable
from mlflow_stability.vocabulary.measured.signal import Series, Signal
from mlflow_stability.vocabulary.result import Finding
from mlflow_stability.vocabulary.run import Metric, RunHistory, attempt_order, number_attempts
from mlflow_stability.vocabulary.text.metric_names import Meaning, metric_meanings
from mlflow_stability.vocabulary.text.phrases import counted
from mlflow_stability.vocabulary.text.recorded_keys import chart_order

LARGEST_STORED = 1.79e308  # MLflow's databases store an infinity as the largest number
_T = TypeVar("_T")
_Row: TypeAlias = tuple[int, int, float, int, float]  # recording, step, time, number of the signal, value
_logger = logging.getLogger(__name__)
_COUNT = "nonfinite_values"
_COUNTED = ("loss", "grad_norm")  # quantities whose non-finite values are counted: they are no points of a chart


class RunReader:
    def __init__(self, run_id: str, tracking_uri: str | None = None, client: MlflowClient | None = None) -> None:
        self.left_out: list[str] = []  # the files, and lines of files, that could not be read
        uri = tracking_uri or mlflow.get_tracking_uri()
        self._client = client or answering_client(tracking_uri)
        try:
            self._run = self._get_run(run_id)
        except RunNotFoundError:
            raise RunNotFoundError(
                f"No run {run_id!r} at {strip_credentials(uri)}. Check the tracking URI; the default is "
                "MLFLOW_TRACKING_URI."
            ) from None
        if self._run.info.run_id.lower() != run_id.lower():
            raise not_mlflow(uri)
        self.run_id = str(self._run.info.run_id)

    def _get_run(self, run_id: str) -> Run:
        """Return the run of this id, as typed or in lower case."""
        with store_trouble(f"read run {run_id}"):
            try:
                return self._client.get_run(run_id)
            except MlflowException:
                if run_id == run_id.lower():
                    raise
                return self._client.get_run(run_id.lower())

    @property
    def is_deleted(self) -> bool:
        """Whether it was deleted; it stays until MLflow's garbage collection."""
        return str(self._run.info.lifecycle_stage) == "deleted"

    @property
    def tags(self) -> dict[str, str]:
        return dict(self._run.data.tags)

    @property
    def params(self) -> dict[str, str]:
        return dict(self._run.data.params)

    @property
    def name(self) -> str:
        return str(self._run.info.run_name or self.run_id)

    @property
    def status(self) -> str:
        """MLflow's word for its status: ``RUNNING``, ``FINISHED``."""
        return str(self._run.info.status)

    @property
    def facts(self) -> RunFacts:
        return RunFacts(self.run_id, self.name, self.status, self.params, self.tags)

    @property
    def metric_keys(self) -> list[str]:
        """The keys of all its metrics, those of the main charts first."""
        return sorted(self._run.data.metrics, key=chart_order)

    def record(self) -> RunRecord:
        """Return the full record, else the points of MLflow's metric tables. Raises RunNotFoundError without either."""
        record = self.full_record()
        if record is None:
            record = self.metric_points()
        if record is None:
            raise RunNotFoundError(
                f"Run {self.run_id} has no data of mlflow-stability: no file in {RECORD_FOLDER} and no metric "
                "stability/…. Was autolog() on? Shortly after the end of a run its data may still be on the "
                "way. `mlflow-stability sync` delivers what was left behind."
            )
        return record

    def full_record(self) -> RunRecord | None:
        parts = [part for _, part in self._files(RECORD_FOLDERS, part_order, lambda _, file: read_part(file))]
        return joined(parts) if parts else None

    def thinned_record(self, max_values: int, events: Iterable[Finding]) -> RunRecord | None:
        """Return the Parquet record with about `max_values` at most, and everything around events."""
        thinner = RecordThinner(max_values, events)
        self._files(RECORD_FOLDERS, part_order, lambda _, file: thinner.add(read_part(file)))
        return thinner.record()

    def layer_tables(self) -> list[tuple[int, LayerTable]]:
        """Return the tables of gradients and weights by layer, each with the number of its recording."""
        parts = self._files(LAYER_TABLES_FOLDERS, part_order, lambda _, file: read_layer_part(file))
        return [(recording, table) for (recording, _), tables in parts for table in tables]

    def event_lines(self) -> list[tuple[int, EventLine]]:
        """Return events, resets, gaps, notes, openings and closings, each with the number of its recording."""

        def read(path: str, file: Path) -> list[EventLine]:
            return read_events(file.read_text(encoding="utf-8"), path, self._leave_out)

        files = self._files(EVENTS_FOLDERS, events_order, read)
        return [(recording, line) for (recording, _), lines in files for line in lines]

    def metric_points(self, quantities: Collection[str] = ()) -> RunRecord | None:
        """Return this package's points in MLflow's metric tables, or None.

        With `quantities` only those of the whole model. A loss or gradient norm that has no point where the count of
        non-finite values rose was one of them: NaN.
        """
        signals: dict[Signal, int] = {}
        rows: list[_Row] = []
        for key in self.metric_keys:
            prefix, signal = parse_key(key) or ("", None)
            if signal is None:
                continue
            if quantities and (signal.place or signal.quantity not in (*quantities, _COUNT)):
                continue
            recording = int(prefix.rpartition("_")[2]) - 1 if "_" in prefix else 0
            with store_trouble(f"read metric {key}"):
                history = self._client.get_metric_history(self.run_id, key)
            number = signals.setdefault(signal, len(signals))
            for point in history:
                step, time, value = whole_number(point.step), whole_number(point.timestamp) / 1000, point.value
                if abs(value) >= LARGEST_STORED:
                    value = math.copysign(math.inf, value)
                rows.append((recording, step, time, number, value))
        if not rows:
            return None
        rows += _nonfinite_points(rows, signals)
        rows.sort()
        recordings, steps, times, numbers, values = zip(*rows, strict=True)
        return RunRecord(
            tuple(signals),
            np.asarray(recordings, np.int32),
            np.zeros(len(rows), np.int32),
            np.asarray(steps, np.int64),
            np.asarray(times, np.float64),
            np.asarray(numbers, np.int32),
            np.asarray(values, np.float64),
            complete=False,
        )

    def file_names(self, folder: str) -> list[str]:
        with store_trouble(f"list the files in {folder} of run {self.run_id}"):
            return [artifact.name for artifact in artifacts_in(self._client, self.run_id, folder)]

    def fetched(self, path: str, read: Callable[[Path], _T]) -> _T:
        """Download an artifact and return what `read` makes of it; the file is deleted afterwards."""
        with tempfile.TemporaryDirectory(prefix="mlflow-stability-") as folder:
            with store_trouble(f"download {path}"), no_progress_bar():
                file = download_file(self._client, self.run_id, path, Path(folder))
            return read(file)

    def _files(
        self, folders: Sequence[str], order: Callable[[str], tuple[int, int] | None], read: Callable[[str, Path], _T]
    ) -> list[tuple[tuple[int, int], _T]]:
        """Read the files of artifact folders one after the other in their order."""
        paths = sorted(
            (place, f"{folder}/{name}")
            for folder in folders
            for name in self.file_names(folder)
            if (place := order(name))
        )
        contents = []
        for place, path in paths:
            try:
                contents.append((place, self.fetched(path, partial(read, path))))
            except (pa.ArrowException, ValueError, KeyError, TypeError) as error:
                # A run that is still being written can show an incomplete file.
                self._leave_out(path, error)
        return contents

    def _leave_out(self, name: str, error: Exception | None) -> None:
        self.left_out.append(name)
        if error is not None:
            _logger.warning("Skipped %s: %s", name, sentence(error))


def _nonfinite_points(rows: Sequence[_Row], signals: Mapping[Signal, int]) -> list[_Row]:
    """Return the losses and gradient norms that have no point because they were not finite."""
    points: list[_Row] = []
    for count, number in signals.items():
        if count.quantity != _COUNT:
            continue
        rises, previous = [], (-1, 0.0)
        for recording, step, time, _, value in sorted(row for row in rows if row[3] == number):
            if value > (previous[1] if previous[0] == recording else 0.0):
                rises.append((recording, step, time))
            previous = recording, value
        for signal in (replace(count, quantity=quantity) for quantity in _COUNTED):
            if signal in signals:
                own = signals[signal]
                finite = {(recording, step) for recording, step, _, other, _ in rows if other == own}
                points += [(*rise, own, math.nan) for rise in rises if rise[:2] not in finite]
    return points


DELETED = "This run was deleted; it is readable until MLflow's garbage collection."
READERS = 4  # number of metrics that are fetched at once: a server answers a few as fast as one
_POINT = np.dtype([("time", np.int64), ("step", np.int64), ("value", np.float64)])  # time in milliseconds
_Points: TypeAlias = NDArray[np.void]


def read_run_history(run_id: str, tracking_uri: str | None = None, most_values: int | None = None) -> RunHistory:
    """Read a run; of a long record at most about `most_values`, which the history then says."""
    client = answering_client(tracking_uri)
    reader = RunReader(run_id, tracking_uri, client)
    recorded = is_recorded(reader.tags)
    lines = reader.event_lines() if recorded else []
    record = None
    if recorded:
        events = [line for _, line in lines if isinstance(line, Finding)]
        record = reader.full_record() if most_values is None else reader.thinned_record(most_values, events)
    if record is not None and len(record):
        history = recorded_history(reader.facts, record, lines)
        metrics, _ = _metrics(reader, client, [key for key in reader.metric_keys if parse_key(key) is None])
        history = with_metrics_of_the_script(history, metrics)
    else:
        history = _history_of_tables(reader, client, lines, recorded)
    history = with_left_out(history, reader.left_out)
    return replace(history, notes=(*history.notes, DELETED)) if reader.is_deleted else history


def _history_of_tables(
    reader: RunReader, client: MlflowClient, lines: Sequence[RecordedLine], recorded: bool
) -> RunHistory:
    """Return what MLflow's metric tables hold."""
    metrics, no_steps = _metrics(reader, client, reader.metric_keys)
    if reader.tags.get(TIMES) == COUNTED:
        metrics = [replace(metric, series=replace(metric.series, times=0 * metric.series.times)) for metric in metrics]
    points = sum(len(metric.series) for metric in metrics)
    outcome, detail = ending(reader.facts, lines)
    notes = []
    if recorded:
        notes.append("Full record missing: read the thinned points of MLflow's metric tables instead.")
    if no_steps:
        notes.append("Every step is 0, because the script logged no steps: points are numbered by their time.")
    basis = f"the complete history of {counted(len(metrics), 'metric')} ({counted(points, 'point')})"
    return RunHistory(
        source=reader.run_id,
        name=reader.name,
        format="recorded" if recorded else "mlflow",
        basis=f"recorded findings and {basis}" if lines else basis,
        metrics=tuple(metrics),
        events=events_of(lines) if lines else None,
        gaps=gaps_of(lines),
        outcome=outcome,
        outcome_detail=detail,
        params={**settings_of(lines), **reader.params},
        tags={**notes_of(lines), **reader.tags},
        notes=tuple(notes),
        ordinal_steps=no_steps,
        complete=not recorded,
    )


def _metrics(reader: RunReader, client: MlflowClient, keys: Sequence[str]) -> tuple[list[Metric], bool]:
    """Return the metrics of these keys that are about the training, and whether all their steps are 0."""
    meanings = metric_meanings(keys)
    wanted = [key for key in keys if not meanings[key].bookkeeping]
    histories = _fetch_all(wanted, lambda key: _history(client, reader.run_id, key))
    longest = max(map(len, histories), default=0)
    no_steps = longest > 1 and all((points["step"] == 0).all() for points in histories)
    key_of: dict[tuple[str, Signal], str] = {}
    points_of: dict[str, list[_Points]] = {}
    for key, points in zip(wanted, histories, strict=True):
        parsed = parse_key(key)  # a run that was resumed by a newer version has two keys of one signal
        points_of.setdefault(key if parsed is None else key_of.setdefault(parsed, key), []).append(points)
    signals = {key: signal for (_, signal), key in key_of.items()}
    metrics = []
    for key, parts in points_of.items():
        signal = signals.get(key)
        meaning = meanings[key] if signal is None else Meaning(signal.quantity, signal.place, is_known=True)
        metrics.append(Metric(key, meaning, _series(meaning, _by_time(np.concatenate(parts)), no_steps)))
    return metrics, no_steps


def _fetch_all(keys: Sequence[str], fetch: Callable[[str], _Points]) -> list[_Points]:
    """Fetch a few at once, in daemon threads: after Ctrl-C a server may be silent for minutes."""
    waiting, stopped = iter(keys), threading.Event()
    results: SimpleQueue[tuple[str, _Points | BaseException]] = SimpleQueue()

    def work() -> None:
        while not stopped.is_set() and (key := next(waiting, None)) is not None:
            try:
                results.put((key, fetch(key)))
            except BaseException as error:  # raised again where it is waited for
                results.put((key, error))

    for _ in range(min(READERS, len(keys))):
        Thread(target=work, daemon=True).start()
    fetched: dict[str, _Points] = {}
    try:
        while len(fetched) < len(keys):
            key, points = results.get()
            if isinstance(points, BaseException):
                raise points
            fetched[key] = points
    finally:
        stopped.set()
    return [fetched[key] for key in keys]


def _history(client: MlflowClient, run_id: str, key: str) -> _Points:
    """Return the points in the order in which they were logged."""
    with store_trouble(f"read metric {key}"):
        history: list[StoredMetric] = client.get_metric_history(run_id, key)
    rows = ((whole_number(point.timestamp), whole_number(point.step), point.value) for point in history)
    return _by_time(np.fromiter(rows, _POINT, len(history)))


def _by_time(points: _Points) -> _Points:
    return points[np.argsort(points["time"], kind="stable")]


def _series(meaning: Meaning, points: _Points, no_steps: bool) -> Series:
    values = points["value"]
    values = np.where(np.abs(values) >= LARGEST_STORED, np.copysign(np.inf, values), values)
    steps = np.arange(len(points)) if no_steps else points["step"].astype(np.int64)
    attempts = number_attempts(steps)
    order = attempt_order(steps, attempts)
    return Series(meaning.signal, steps[order], values[order], attempts[order], points["time"][order] / 1000)
