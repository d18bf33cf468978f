"""Judge a run's history by detectors, as if it were training now, and by the rules for whole curves.

Detectors get the values of each step together and steps in order; where the training was started again they begin
again. What the rules of whole curves judge better is left to them, and a loss whose level does not measure progress is
not judged by it. Values that a script logged in its own units are converted to ours.

A rule judges for the detector of its kind: who asks for other kinds, or for another way of finding that kind
(``loss_spike:classic``), does not get it. The score of a finding is the highest factor for all thresholds of its rule
at which it is still found.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.curves.curves import RunCurves, recorded_level, restore_infinities, start_by_attempt
from mlflow_stability.detectors.detector import Detector
from mlflow_stability.detectors.finding_type import FindingType
from mlflow_stability.detectors.loss_level import REPLACING, RISE
from mlflow_stability.detectors.sensitivity import factor_of, only_scaled, scale_thresholds
from mlflow_stability.kinds.catalog import EXPERIMENTAL, RULES, SEEN_FROM_OUTSIDE
from mlflow_stability.kinds.loss.divergence_early import StartFacts
from mlflow_stability.kinds.panel import Panel
from mlflow_stability.kinds.rule import Rule
from mlflow_stability.vocabulary.judging import CLASSIC, MAX_SCORE
from mlflow_stability.vocabulary.loss_level import LOSS_LEVEL, NoLevel
from mlflow_stability.vocabulary.measured.signal import Signal, StepReading
from mlflow_stability.vocabulary.result import Finding, Severity, most_severe
from mlflow_stability.vocabulary.run import RUN_STATUS, Metric, RunHistory

BETTER_SEEN_WHOLE = frozenset({"inf_detected", "nan_detected", "overfitting", "plateau"})
"""Kinds that the rules of whole curves judge instead, where nothing was judged during training."""
SINGLE_STEP_KINDS = frozenset({"repeated_data"})
"""Kinds that compare one step with the next: only in our own recordings each point is known to be a single step."""
FIRST_QUANTITIES = ("skipped_steps", "loss_scale", "loss", "val_loss", "grad_norm")
"""The order within a step that detectors expect; all others follow."""
LEVEL_KINDS = frozenset({"divergence", "loss_spike", "oscillation", "overfitting", "plateau", "slow_progress"})
"""Kinds that judge the level of a loss."""
SHARES = frozenset({"memory_share", "mfu", "sdr_unique_ratio"})  # quantities that are shares, from 0 to 1
MAX_SHARE, MAX_PERCENT = 1.05, 105.0
"""A larger value is a percentage; one above the second limit is neither, such as memory in megabytes."""
WHERE_JUDGED_LIVE = tuple(rule for rule in RULES if not rule.only_without_detectors)
"""The rules for runs that detectors watched: they show what only a whole curve does."""
OF_VALIDATIONS = tuple(rule for rule in RULES if rule.of_validations)
"""The rules for validation losses of such runs, which the script logs itself and no detector saw."""
HALVINGS = 6  # number of halvings in the search for a score, which is then known to 7 %


def replayed(history: RunHistory, curves: RunCurves, detectors: Sequence[Detector]) -> list[Finding]:
    """Return the events of the whole history, in order of time."""
    is_ours = history.format == "recorded"
    left_out = BETTER_SEEN_WHOLE if is_ours else BETTER_SEEN_WHOLE | SINGLE_STEP_KINDS
    level = next((curve.level for curve in curves.losses if not curve.has_level), recorded_level(history))
    panel = Panel([detector for detector in detectors if detector.kind not in left_out], level=level)
    quantities = {quantity for detector in panel.detectors for quantity in detector.quantities}
    wanted = {"micro_batches", "loss_terms", "loss_weight", *quantities}
    unjudged = {
        curve.name
        for curve in (*curves.losses, *curves.validations)
        if curve.part or not (curve.has_level or curve.level.reason is NoLevel.SIGNED)
    }
    metrics = [
        metric
        for metric in history.metrics
        if metric.meaning.quantity in wanted and metric.name not in unjudged and not metric.meaning.duplicate_of
    ]
    if not is_ours:
        rows = {metric.meaning.place: metric for metric in metrics if metric.meaning.quantity == "sdr_rows"}
        shares = [_as_share(metric, rows) if metric.meaning.quantity in SHARES else metric for metric in metrics]
        metrics = [metric for metric in shares if metric is not None]
    starts = start_by_attempt(history)
    events: list[Finding] = []
    start = None
    order = {quantity: place for place, quantity in enumerate(FIRST_QUANTITIES)}
    metrics.sort(key=lambda metric: order.get(metric.meaning.quantity, len(order)))
    for reading in _readings(metrics, by_time=is_ours):
        if starts.get(reading.attempt, reading.attempt) != start:
            start = starts.get(reading.attempt, reading.attempt)
            panel.restart()
        events += panel.judge(reading)
    return events


def _readings(metrics: list[Metric], by_time: bool) -> Iterator[StepReading]:
    """Yield the values of several metrics, step by step; `by_time`: times separate trainings within a step."""
    metrics = [metric for metric in metrics if len(metric.series)]
    if not metrics:
        return
    signals = [Signal(metric.meaning.quantity, metric.meaning.place) for metric in metrics]
    attempts = np.concatenate([metric.series.attempts for metric in metrics])
    steps = np.concatenate([metric.series.steps for metric in metrics])
    which = np.repeat(np.arange(len(metrics)), [len(metric.series) for metric in metrics])
    values = np.concatenate([restore_infinities(metric.series.values) for metric in metrics])
    times = np.concatenate([metric.series.times for metric in metrics])
    repeats = np.concatenate([_repeats(metric) for metric in metrics])
    moments = np.unique(times, return_inverse=True)[1].reshape(-1) if by_time else np.zeros(len(times), np.int64)
    order = np.lexsort((which, repeats, moments, steps, attempts))
    keys = np.stack([attempts[order], steps[order], moments[order], repeats[order]])
    edges = np.flatnonzero(np.any(np.diff(keys, axis=1) != 0, axis=0)) + 1
    columns = [column[order].tolist() for column in (attempts, steps, which, values, times)]
    layouts: dict[tuple[int, ...], tuple[Signal, ...]] = {}
    for low, high in pairwise([0, *edges.tolist(), len(order)]):
        codes = tuple(columns[2][low:high])
        layout = layouts.get(codes)
        if layout is None:
            layout = layouts[codes] = tuple(signals[code] for code in codes)
        yield StepReading(columns[1][low], layout, tuple(columns[3][low:high]), columns[0][low], columns[4][low])


def _repeats(metric: Metric) -> NDArray[np.int64]:
    """Return for each point how many came before it at the same step: a step that was logged twice is two readings."""
    series = metric.series
    again = np.concatenate([[False], (np.diff(series.steps) == 0) & (np.diff(series.attempts) == 0)])
    if not again.any():
        return np.zeros(len(series), np.int64)
    places = np.arange(len(series))
    return (places - np.maximum.accumulate(np.where(again, 0, places))).astype(np.int64)


def _as_share(metric: Metric, rows: Mapping[str, Metric]) -> Metric | None:
    """Convert percentages and counts of patterns to shares; None for what cannot be a share."""
    values = metric.series.values
    values = np.where(values >= 0, values, np.nan)  # nanoGPT prints an MFU of -100 % until it is known
    finite = values[np.isfinite(values)]
    largest = float(np.max(finite, initial=0.0))
    is_count = metric.meaning.quantity == "sdr_unique_ratio" and bool((finite == np.floor(finite)).all())
    if is_count and largest > MAX_SHARE:
        codes = rows.get(metric.meaning.place)
        if codes is not None and np.array_equal(codes.series.steps, metric.series.steps):
            values = values / np.maximum(codes.series.values, 1.0)
        else:  # of the most that were ever counted, which is never too low
            values = values / largest
    elif largest > MAX_PERCENT:
        return None
    elif largest > MAX_SHARE:
        values = values / 100
    return replace(metric, series=replace(metric.series, values=values))


def without_unjudged_levels(events: Iterable[Finding], history: RunHistory, curves: RunCurves) -> list[Finding]:
    """Return the events of a run without those that judge a loss by a level that does not measure progress.

    A loss at many times its first value after an update that replaced the weights stays: it says that they are lost.
    """
    if recorded_level(history).reason is None or any(curve.has_level for curve in curves.losses):
        return list(events)
    series = [metric.series for metric in history.of(LOSS_LEVEL)]
    since = min((int(points.attempts[0]), int(points.steps[0])) for points in series if len(points))

    def is_judged(event: Finding) -> bool:
        start = event.facts_as(StartFacts)
        is_replaced = start is not None and start.update_ratio >= REPLACING and start.value >= RISE * start.baseline
        return event.kind not in LEVEL_KINDS or (event.attempt, event.step) > since or is_replaced

    return [event for event in events if is_judged(event)]


def apply_rules(rules: Iterable[type[Rule]], curves: RunCurves, detectors: Sequence[Detector]) -> list[Finding]:
    """Return what these rules find, of the kinds that were asked for, with scores."""
    findings: list[Finding] = []
    for rule_type in rules:
        rule, factor = rule_type(), 1.0
        of_kind = (detector for detector in detectors if detector.kind == rule.kind and not detector.rule)
        # A detector that a user wrote may have the methods of a detector alone.
        detector = next((detector for detector in of_kind if isinstance(detector, FindingType)), None)
        if detector is not None:
            factor = factor_of(detector)
            rule = scale_thresholds(rule, factor) if only_scaled(detector) else rule.like(detector)
        findings += _with_scores(of_detectors(rule.find(curves), detectors), rule, factor, curves)
    return [
        replace(finding, experimental=True, severity=Severity.INFO) if finding.kind in EXPERIMENTAL else finding
        for finding in findings
    ]


def of_detectors(findings: Iterable[Finding], detectors: Sequence[Detector]) -> list[Finding]:
    """Return those of the kinds that detectors look for; what no detector finds, as the end of a process, is kept."""
    kinds = {detector.kind for detector in detectors if not detector.rule}
    kinds |= {*RUN_STATUS, *(cls.kind for cls in SEEN_FROM_OUTSIDE)}
    return [finding for finding in findings if finding.kind in kinds]


def changed_kinds(detectors: Sequence[Detector]) -> set[str]:
    """Return the kinds with a threshold of the user's own, or with a classic rule alone."""
    own = {
        detector.kind
        for detector in detectors
        if isinstance(detector, FindingType) and not detector.rule and not only_scaled(detector)
    }
    classic = {detector.kind for detector in detectors if detector.rule == CLASSIC}
    return own | (classic - {detector.kind for detector in detectors if detector.rule != CLASSIC})


def cap_severities(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return the findings, CRITICAL only where their score allows it: they would be found at low sensitivity, too."""
    return tuple(replace(finding, severity=min(finding.severity, most_severe(finding.score))) for finding in findings)


def _with_scores(findings: list[Finding], rule: Rule, factor: float, curves: RunCurves) -> list[Finding]:
    """Score the findings of a rule whose thresholds were already scaled by a factor."""
    if not findings or not rule.by_sensitivity:
        return findings

    @cache
    def at_factor(beyond: float) -> list[Finding]:
        return scale_thresholds(rule, beyond).find(curves)

    def highest_factor(finding: Finding) -> float:
        low, high = 0.0, math.log(MAX_SCORE)
        if any(_touch(finding, other) for other in at_factor(MAX_SCORE)):
            return MAX_SCORE
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            still = any(_touch(finding, other) for other in at_factor(math.exp(middle)))
            low, high = (middle, high) if still else (low, middle)
        return math.exp(low)

    return [replace(finding, score=round(min(MAX_SCORE, factor * highest_factor(finding)), 2)) for finding in findings]


def _touch(finding: Finding, other: Finding) -> bool:
    """Whether two findings are of one kind and curve, and overlap."""
    alike = (finding.kind, finding.metric, finding.attempt) == (other.kind, other.metric, other.attempt)
    return alike and finding.start <= other.end and other.start <= finding.end
