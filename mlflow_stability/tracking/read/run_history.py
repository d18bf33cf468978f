"""Reads everything that MLflow holds of a run, whoever recorded it.

In: a run id and where it lives. Out: a `RunHistory`. Guarantees: of a run of ours the full record where there is one,
with the events that were judged while it trained, and the metrics that the script logged itself; else, and of anybody
else's run, the complete histories of its metrics, never a sample of them; infinities where a store could only keep the
largest number. An unreachable server is told within seconds.
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

from mlflow_stability.tracking.artifacts.record_events import Said
from mlflow_stability.tracking.imports import COUNTED, TIMES
from mlflow_stability.tracking.keys import parse_key
from mlflow_stability.tracking.read.recorded_history import (
    RunFacts,
    ending,
    events_of,
    gaps_of,
    notes_of,
    recorded_history,
    settings_of,
    with_gaps_told,
    with_metrics_of_the_script,
)
from mlflow_stability.tracking.read.run_reader import RunReader
from mlflow_stability.tracking.read.run_record import RunRecord, whole_number
from mlflow_stability.tracking.store.reachable_client import answering_client
from mlflow_stability.tracking.store.store_errors import store_trouble
from mlflow_stability.tracking.tag_names import is_recorded
from mlflow_stability.vocabulary.measured import Series, Signal
from mlflow_stability.vocabulary.result import Finding
from mlflow_stability.vocabulary.run import Metric, RunHistory, attempts_of, in_order
from mlflow_stability.vocabulary.text import Meaning, counted, meanings_of

DELETED = "This run was deleted; it is readable until MLflow's garbage collection."
READERS = 4
"""How many metrics are fetched at once: a server answers a few as fast as one."""
_AS_GOOD_AS_INFINITE = 1.79e308  # what MLflow's databases make of an infinity
_POINT = np.dtype([("time", np.int64), ("step", np.int64), ("value", np.float64)])  # time in milliseconds
_History: TypeAlias = NDArray[np.void]
"""Points of one metric."""


def read_run_history(run_id: str, tracking_uri: str | None = None, most_values: int | None = None) -> RunHistory:
    """Everything about a run; of a long record at most about `most_values`, which the history says."""
    client = answering_client(tracking_uri)
    reader = RunReader(run_id, tracking_uri, client)
    is_ours = is_recorded(reader.tags)
    said = reader.said() if is_ours else []
    record = _record(reader, said, most_values) if is_ours else None
    if record is not None and len(record):
        history = recorded_history(_facts(reader), record, said)
        theirs, _ = _metrics(reader, client, [key for key in reader.metric_keys if parse_key(key) is None])
        history = with_metrics_of_the_script(history, theirs)
    else:
        history = _tables(reader, client, said, is_ours)
    history = with_gaps_told(history, reader.left_out)
    return replace(history, notes=(*history.notes, DELETED)) if reader.is_deleted else history


def _facts(reader: RunReader) -> RunFacts:
    return RunFacts(reader.run_id, reader.name, reader.status, reader.params, reader.tags)


def _record(reader: RunReader, said: Sequence[tuple[int, Said]], most: int | None) -> RunRecord | None:
    if most is None:
        return reader.full_record()
    return reader.thinned_record(most, [each for _, each in said if isinstance(each, Finding)])


def _tables(reader: RunReader, client: MlflowClient, said: Sequence[tuple[int, Said]], is_ours: bool) -> RunHistory:
    """What MLflow's metric tables hold."""
    metrics, no_steps = _metrics(reader, client, reader.metric_keys)
    if reader.tags.get(TIMES) == COUNTED:
        metrics = [replace(each, series=replace(each.series, times=0 * each.series.times)) for each in metrics]
    points = sum(len(each.series) for each in metrics)
    outcome, detail = ending(_facts(reader), said)
    notes = []
    if is_ours:
        notes.append("Full record missing: read the thinned points of MLflow's metric tables instead.")
    if no_steps:
        notes.append("Every step is 0, because the script logged no steps: points are numbered by their time.")
    basis = f"the complete history of {counted(len(metrics), 'metric')} ({counted(points, 'point')})"
    return RunHistory(
        source=reader.run_id,
        name=reader.name,
        format="recorded" if is_ours else "mlflow",
        basis=f"recorded findings and {basis}" if said else basis,
        metrics=tuple(metrics),
        events=events_of(said) if said else None,
        gaps=gaps_of(said),
        outcome=outcome,
        outcome_detail=detail,
        params={**settings_of(said), **reader.params},
        tags={**notes_of(said), **reader.tags},
        notes=tuple(notes),
        ordinal_steps=no_steps,
        complete=not is_ours,
    )


def _metrics(reader: RunReader, client: MlflowClient, keys: Sequence[str]) -> tuple[list[Metric], bool]:
    """The metrics of these keys that say something about the training, and whether they have no steps."""
    meanings = meanings_of(keys)
    wanted = [key for key in keys if not meanings[key].bookkeeping]
    histories = _fetched(wanted, lambda key: _history(client, reader.run_id, key))
    no_steps = _have_no_steps(histories)
    ours: dict[tuple[str, Signal], str] = {}
    points: dict[str, list[_History]] = {}
    for key, history in zip(wanted, histories, strict=True):
        parsed = parse_key(key)  # a run that was resumed by a newer version has two keys of one signal
        points.setdefault(key if parsed is None else ours.setdefault(parsed, key), []).append(history)
    names = {key: signal for (_, signal), key in ours.items()}
    metrics = []
    for key, parts in points.items():
        signal = names.get(key)
        meaning = meanings[key] if signal is None else Meaning(signal.quantity, signal.place, known=True)
        metrics.append(Metric(key, meaning, _series(meaning, _by_time(np.concatenate(parts)), no_steps)))
    return metrics, no_steps


def _fetched(keys: Sequence[str], fetch: Callable[[str], _History]) -> list[_History]:
    """A few at a time, in threads that nobody has to wait for: after Ctrl-C a server may be silent for minutes."""
    waiting, over = iter(keys), threading.Event()
    came: SimpleQueue[tuple[str, _History | BaseException]] = SimpleQueue()

    def work() -> None:
        while not over.is_set() and (key := next(waiting, None)) is not None:
            try:
                came.put((key, fetch(key)))
            except BaseException as error:  # raised again where it is waited for
                came.put((key, error))

    for _ in range(min(READERS, len(keys))):
        Thread(target=work, daemon=True).start()
    found: dict[str, _History] = {}
    try:
        while len(found) < len(keys):
            key, history = came.get()
            if isinstance(history, BaseException):
                raise history
            found[key] = history
    finally:
        over.set()
    return [found[key] for key in keys]


def _history(client: MlflowClient, run_id: str, key: str) -> _History:
    """The points in the order in which they were logged."""
    with store_trouble(f"read metric {key}"):
        history: list[StoredMetric] = client.get_metric_history(run_id, key)
    points = np.fromiter(
        ((whole_number(each.timestamp), whole_number(each.step), each.value) for each in history), _POINT, len(history)
    )
    return _by_time(points)


def _by_time(points: _History) -> _History:
    return points[np.argsort(points["time"], kind="stable")]


def _have_no_steps(histories: Sequence[_History]) -> bool:
    longest = max(map(len, histories), default=0)
    return longest > 1 and all((points["step"] == 0).all() for points in histories)


def _series(meaning: Meaning, points: _History, no_steps: bool) -> Series:
    values = points["value"]
    infinite = np.abs(values) >= _AS_GOOD_AS_INFINITE
    values = np.where(infinite, np.copysign(np.inf, values), values)
    steps = np.arange(len(points)) if no_steps else points["step"].astype(np.int64)
    attempts = attempts_of(steps)
    order = in_order(steps, attempts)
    return Series(meaning.signal, steps[order], values[order], attempts[order], points["time"][order] / 1000)
