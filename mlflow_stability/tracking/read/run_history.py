"""Read everything that MLflow holds of a run, whoever recorded it.

Guarantees: a run recorded by this package has its full record and the events found while it trained, if they are there.
Other runs have the complete histories of their metrics, never a sample. Infinities are infinite even where a store kept
the largest number.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from queue import SimpleQueue
from threading import Thread
from typing import TypeAlias

import numpy as np
from mlflow import MlflowClient
from mlflow.entities import Metric as StoredMetric
from numpy.typing import NDArray

from mlflow_stability.tracking.client import answering_client, store_trouble
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
from mlflow_stability.tracking.read.run_reader import LARGEST_STORED, RunReader
from mlflow_stability.tracking.read.run_record import whole_number
from mlflow_stability.tracking.run_import import COUNTED, TIMES
from mlflow_stability.tracking.tag_names import is_recorded
from mlflow_stability.vocabulary.measured.signal import Series, Signal
from mlflow_stability.vocabulary.result import Finding
from mlflow_stability.vocabulary.run import Metric, RunHistory, attempt_order, number_attempts
from mlflow_stability.vocabulary.text.metric_names import Meaning, metric_meanings
from mlflow_stability.vocabulary.text.phrases import counted

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
    if recorded and most_values is None:
        record = reader.full_record()
    elif recorded and most_values is not None:
        record = reader.thinned_record(most_values, [line for _, line in lines if isinstance(line, Finding)])
    if record is not None and len(record):
        history = recorded_history(_facts(reader), record, lines)
        metrics, _ = _metrics(reader, client, [key for key in reader.metric_keys if parse_key(key) is None])
        history = with_metrics_of_the_script(history, metrics)
    else:
        history = _history_of_tables(reader, client, lines, recorded)
    history = with_left_out(history, reader.left_out)
    return replace(history, notes=(*history.notes, DELETED)) if reader.is_deleted else history


def _facts(reader: RunReader) -> RunFacts:
    return RunFacts(reader.run_id, reader.name, reader.status, reader.params, reader.tags)


def _history_of_tables(
    reader: RunReader, client: MlflowClient, lines: Sequence[RecordedLine], recorded: bool
) -> RunHistory:
    """Return what MLflow's metric tables hold."""
    metrics, no_steps = _metrics(reader, client, reader.metric_keys)
    if reader.tags.get(TIMES) == COUNTED:
        metrics = [replace(metric, series=replace(metric.series, times=0 * metric.series.times)) for metric in metrics]
    points = sum(len(metric.series) for metric in metrics)
    outcome, detail = ending(_facts(reader), lines)
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
