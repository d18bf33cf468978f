"""Shows a run's history to the detectors, as if it were training now.

In: a history and detectors. Out: the events they find, in order of time. Guarantees: they see each step's values
together and steps in order; where the training was started again they know nothing of what came before. What only
a whole curve can tell is not asked of them; and neither is a loss whose level does not measure progress.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

import numpy as np

from mlflow_stability.curves.curves import RunCurves, recorded_level, restore_infinities, start_by_attempt
from mlflow_stability.detectors.detector import Detector
from mlflow_stability.diagnosis.findings.usual_units import in_usual_units
from mlflow_stability.kinds.catalog import default_detectors
from mlflow_stability.kinds.panel import Panel
from mlflow_stability.vocabulary.loss_level import LOSS_LEVEL, NoLevel
from mlflow_stability.vocabulary.measured import Signal, StepReading
from mlflow_stability.vocabulary.result import Finding
from mlflow_stability.vocabulary.run import Metric, RunHistory

BETTER_SEEN_WHOLE = frozenset({"inf_detected", "nan_detected", "overfitting", "plateau"})
"""Kinds for which the rules of whole curves are asked instead, where nothing was judged while it trained."""
OF_SINGLE_STEPS = frozenset({"repeated_data"})
"""Kinds that compare one step with the next: only of what we recorded is it known that each point is a single step."""
FIRST = ("skipped_steps", "loss_scale", "loss", "val_loss", "grad_norm")
"""The order within a step in which detectors are used to seeing values; all others follow."""


def replayed(history: RunHistory, curves: RunCurves, detectors: Sequence[Detector] | None = None) -> list[Finding]:
    """The events of the whole history."""
    asked = default_detectors() if detectors is None else detectors
    left_out = BETTER_SEEN_WHOLE if history.format == "recorded" else BETTER_SEEN_WHOLE | OF_SINGLE_STEPS
    unlevelled = next((curve.level for curve in curves.losses if not curve.has_level), recorded_level(history))
    panel = Panel([each for each in asked if each.kind not in left_out], level=unlevelled)
    wanted = {"micro_batches", *(quantity for each in panel.detectors for quantity in each.quantities)}
    every = (*curves.losses, *curves.validations)
    by_step = {each.name for each in every if each.has_level or each.level.reason is NoLevel.SIGNED}
    left = {each.name for each in every if each.part or each.name not in by_step}
    metrics = [metric for metric in history.metrics if metric.meaning.quantity in wanted]
    shown = [metric for metric in metrics if metric.name not in left and not metric.meaning.duplicate_of]
    if history.format != "recorded":
        shown = in_usual_units(shown)
    shown.sort(key=_turn)
    starts = start_by_attempt(history)
    events: list[Finding] = []
    start = None
    for reading in _readings(shown, by_time=history.format == "recorded"):
        if starts.get(reading.attempt, reading.attempt) != start:
            start = starts.get(reading.attempt, reading.attempt)
            panel.begin_anew()
        events += panel.judge(reading)
    return events


def _readings(metrics: list[Metric], by_time: bool) -> Iterator[StepReading]:
    """The values of several metrics, step by step.

    `by_time`: where times say what was measured together, trainings side by side are told apart within a step.
    """
    metrics = [metric for metric in metrics if len(metric.series)]
    if not metrics:
        return
    signals = [Signal(metric.meaning.quantity, metric.meaning.place) for metric in metrics]
    attempts = np.concatenate([metric.series.attempts for metric in metrics])
    steps = np.concatenate([metric.series.steps for metric in metrics])
    which = np.repeat(np.arange(len(metrics)), [len(metric.series) for metric in metrics])
    values = np.concatenate([restore_infinities(metric.series.values) for metric in metrics])
    times = np.concatenate([metric.series.times for metric in metrics])
    turn = np.concatenate([_turns(metric) for metric in metrics])
    moments = np.unique(times, return_inverse=True)[1].reshape(-1) if by_time else np.zeros(len(times), np.int64)
    order = np.lexsort((which, turn, moments, steps, attempts))
    keys = np.stack([attempts[order], steps[order], moments[order], turn[order]])
    edges = np.flatnonzero(np.any(np.diff(keys, axis=1) != 0, axis=0)) + 1
    bounds = [0, *edges.tolist(), len(order)]
    columns = [each[order].tolist() for each in (attempts, steps, which, values, times)]
    layouts: dict[tuple[int, ...], tuple[Signal, ...]] = {}
    for low, high in pairwise(bounds):
        codes = tuple(columns[2][low:high])
        layout = layouts.get(codes)
        if layout is None:
            layout = layouts[codes] = tuple(signals[code] for code in codes)
        yield StepReading(columns[1][low], layout, tuple(columns[3][low:high]), columns[0][low], columns[4][low])


def _turn(metric: Metric) -> int:
    quantity = metric.meaning.quantity
    return FIRST.index(quantity) if quantity in FIRST else len(FIRST)


def _turns(metric: Metric) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """For each point how many came before it at the same step: a step that was logged twice is two readings."""
    series = metric.series
    again = np.concatenate([[False], (np.diff(series.steps) == 0) & (np.diff(series.attempts) == 0)])
    if not again.any():
        return np.zeros(len(series), np.int64)
    places = np.arange(len(series))
    return (places - np.maximum.accumulate(np.where(again, 0, places))).astype(np.int64)


JUDGE_LEVELS = frozenset({"divergence", "loss_spike", "oscillation", "overfitting", "plateau", "slow_progress"})
"""The kinds of findings that judge the level of a loss."""


def without_unjudged_levels(events: Iterable[Finding], history: RunHistory, curves: RunCurves) -> list[Finding]:
    """The events of a run, without what its losses are not judged for."""
    if recorded_level(history).reason is None or any(curve.has_level for curve in curves.losses):
        return list(events)
    series = [metric.series for metric in history.of(LOSS_LEVEL)]
    known = min((int(each.attempts[0]), int(each.steps[0])) for each in series if len(each))
    return [each for each in events if each.kind not in JUDGE_LEVELS or (each.attempt, each.step) > known]
