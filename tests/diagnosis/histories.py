"""Histories of runs, made of plain lists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from mlflow_stability.kinds.old_events import facts_of_old_event
from mlflow_stability.vocabulary.measured.signal import Series
from mlflow_stability.vocabulary.result import Finding
from mlflow_stability.vocabulary.run import Metric, RunHistory
from mlflow_stability.vocabulary.text.metric_names import Meaning, metric_meanings


def metric_of(
    name: str,
    values: ArrayLike,
    *,
    meaning: Meaning | None = None,
    steps: ArrayLike | None = None,
    attempts: ArrayLike | None = None,
) -> Metric:
    expected = metric_meanings([name])[name] if meaning is None else meaning
    numbers = np.asarray(values, np.float64)
    at = np.arange(len(numbers)) if steps is None else np.asarray(steps, np.int64)
    of = np.zeros(len(numbers), np.int64) if attempts is None else np.asarray(attempts, np.int64)
    return Metric(name, expected, Series(expected.signal, at.astype(np.int64), numbers, of, np.zeros(len(numbers))))


def as_read_back(event: Finding) -> Finding:
    """An event without facts as a recording from before there were any is read."""
    if event.facts is not None:
        return event
    return replace(event, facts=facts_of_old_event(event.kind, event.message, event.metrics, event.place))


def run_of(
    *metrics: Metric,
    events: Sequence[Finding] | None = None,
    outcome: str = "",
    outcome_detail: str = "",
    params: Mapping[str, str] | None = None,
    complete: bool = True,
) -> RunHistory:
    return RunHistory(
        "a.jsonl",
        "a",
        "json_lines",
        "all of it",
        metrics,
        None if events is None else tuple(map(as_read_back, events)),
        outcome=outcome,
        outcome_detail=outcome_detail,
        params=params or {},
        complete=complete,
    )


def run_named(**named: ArrayLike) -> RunHistory:
    """A run whose metrics all have a value at each step, under the names that they are given here."""
    meanings = metric_meanings(named)
    return run_of(*(metric_of(name, values, meaning=meanings[name]) for name, values in named.items()))


def falling(count: int, *, seed: int = 0, noise: float = 0.02, first: float = 4.5, last: float = 1.5) -> np.ndarray:
    """A healthy loss."""
    course = last + (first - last) * np.exp(-np.arange(count) / max(1.0, count / 6))
    return course * np.exp(np.random.default_rng(seed).normal(0, noise, count))
