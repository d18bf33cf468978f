"""What is left of a training: the run as it was recorded, and the log that its script might have kept."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
from scenarios.flying import Flown

from mlflow_stability.journal.journal import Record
from mlflow_stability.vocabulary.measured.signal import Series, Signal, StepReading
from mlflow_stability.vocabulary.result import Finding
from mlflow_stability.vocabulary.run import Fact, Metric, RunHistory
from mlflow_stability.vocabulary.text.metric_names import Meaning, metric_meanings


def recorded(flown: Flown) -> RunHistory:
    """Every value, and what was judged while it trained."""
    return recorded_in(flown.records)


def recorded_in(records: Sequence[Record]) -> RunHistory:
    """The same from the records of a journal."""
    metrics = tuple(
        Metric(str(signal), Meaning(signal.quantity, signal.place, is_known=True), series)
        for signal, series in series_by_signal(record for record in records if isinstance(record, StepReading)).items()
    )
    events = tuple(record for record in records if isinstance(record, Finding))
    params = {f"stability.{record.key}": record.value for record in records if isinstance(record, Fact)}
    return RunHistory("run", "run", "recorded", "the full record", metrics, events, outcome="finished", params=params)


def series_by_signal(readings: Iterable[StepReading]) -> dict[Signal, Series]:
    """Turn step readings into one series for each signal, in order of first appearance."""
    points: dict[Signal, list[tuple[int, float, int, float]]] = {}
    for reading in readings:
        for signal, value in zip(reading.signals, reading.values, strict=True):
            points.setdefault(signal, []).append((reading.step, value, reading.attempt, reading.time))
    series = {}
    for signal, rows in points.items():
        steps, values, attempts, times = zip(*rows, strict=True)
        series[signal] = Series(
            signal,
            np.asarray(steps, np.int64),
            np.asarray(values, np.float64),
            np.asarray(attempts, np.int64),
            np.asarray(times, np.float64),
        )
    return series


def logged(flown: Flown, *quantities: str, every: int = 1) -> RunHistory:
    """A point of these quantities every `every` steps, which no detector judged."""
    return log_of(recorded(flown), *quantities, every=every)


def log_of(run: RunHistory, *quantities: str, every: int = 1) -> RunHistory:
    """The same from the whole record."""
    chosen = [metric for metric in run.metrics if metric.name in quantities]
    meanings = metric_meanings([entry.name for entry in chosen])
    metrics = tuple(
        replace(metric, meaning=meanings[metric.name], series=_thinned(metric.series, every)) for metric in chosen
    )
    return RunHistory("log", "log", "json_lines", "all of it", metrics)


def _thinned(series: Series, every: int) -> Series:
    arrays = (series.steps, series.values, series.attempts, series.times)
    return Series(series.signal, *(array[::every] for array in arrays))
