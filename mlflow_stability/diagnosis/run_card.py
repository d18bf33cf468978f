"""Condense a run to a card for comparisons of many; unknown values are None, never zero."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.curves.curves import Curve, join_pieces, restore_infinities, resumed_attempt, run_curves
from mlflow_stability.curves.levels import make_sketch, read_levels
from mlflow_stability.kinds.catalog import definite_noun_of
from mlflow_stability.kinds.loss.divergence_curve import LastingRiseFacts
from mlflow_stability.kinds.reported.rollback import RollbackFacts
from mlflow_stability.vocabulary.result import (
    LOST_OUTCOMES,
    PROCESS_KINDS,
    Diagnosis,
    Finding,
    LossLevels,
    Mark,
    RunCard,
    Severity,
)
from mlflow_stability.vocabulary.run import RunHistory

OUR_PREFIX = "stability."  # what the names of our own parameters begin with
FINAL_PARTS, MIN_FINAL_POINTS = 20, 3  # a final loss is the median of this part of the points, and of at least three


def run_card_of(history: RunHistory, diagnosis: Diagnosis) -> RunCard:
    with np.errstate(all="ignore"):
        return _card(history, diagnosis)


def _card(history: RunHistory, diagnosis: Diagnosis) -> RunCard:
    main = main_curve(history)
    bad = [finding for finding in diagnosis.findings if finding.severity > Severity.INFO]
    about_training = [finding for finding in bad if finding.kind not in PROCESS_KINDS]
    first, last = diagnosis.steps or (None, None)
    if history.format == "recorded" and main is not None and len(main.steps):
        first = int(main.steps[0])  # a script may have logged a validation at step 0, before its first step
    finite = np.zeros(0) if main is None else main.values[main.finite]
    reading = diagnosis.curves[0] if diagnosis.curves else None
    params = {name: value for name, value in history.params.items() if not name.startswith(OUR_PREFIX)}
    for name, value in history.params.items():  # ours under their short name where the script has none of that name
        if name.startswith(OUR_PREFIX):
            params.setdefault(name.removeprefix(OUR_PREFIX), value)
    overheads, rates = _values(history, "overhead_fraction"), _values(history, "learning_rate")
    rollbacks = [event.facts for event in history.events or () if isinstance(event.facts, RollbackFacts)]
    return RunCard(
        source=diagnosis.source,
        name=diagnosis.name,
        format=diagnosis.format,
        params=params,
        tags=dict(history.tags),
        outcome=diagnosis.outcome,
        verdict=diagnosis.verdict,
        severity=diagnosis.severity,
        cause="" if diagnosis.cause is None else diagnosis.cause.name,
        cause_statement="" if diagnosis.cause is None else diagnosis.cause.statement,
        cause_explains=_explained_finding(diagnosis, about_training),
        ended=diagnosis.ended,
        first_step=first,
        last_step=last,
        every=1 if main is None or len(main.steps) < 2 else max(1, round(float(np.median(np.diff(main.steps))))),
        marks=tuple(Mark(f.kind, f.severity, int(f.start), int(f.end), f.recovered) for f in diagnosis.findings),
        onset=min((int(finding.start) for finding in about_training), default=None),
        divergence=_divergence_step(diagnosis.outcome, about_training),
        spikes_in_divergence=tuple(sorted({step for finding in about_training for step in finding.spikes})),
        rolled_back=sum(facts.steps_lost - (facts.steps_regained or 0) for facts in rollbacks),
        skipped=_skipped(history),
        loss="" if main is None else main.name,
        finite_share=1.0 if main is None or not len(main.finite) else float(main.finite.mean()),
        first_loss=float(finite[0]) if len(finite) else None,
        final_loss=None if main is None else final_loss(main.values),
        best_loss=None if main is None else _best_loss(main.name, finite, bad),
        spike_score=None if reading is None else reading.spike_score,
        steps_per_second=_speed(history, main),
        overhead=float(np.median(overheads)) if len(overheads) else None,
        peak_learning_rate=float(rates.max()) if len(rates) else None,
        course=None if main is None else _course(main),
        sketch=None if main is None else make_sketch(main),
        notes=diagnosis.notes,
        cannot_tell=tuple(map(str, diagnosis.cannot_tell)),
    )


def _explained_finding(diagnosis: Diagnosis, about_training: list[Finding]) -> str:
    """Return the finding that the cause explains, where that is not the first one."""
    cause = diagnosis.cause
    first = min(about_training, key=lambda finding: (finding.attempt, finding.start), default=None)
    if cause is None or first is None or cause.step is None:
        return ""
    is_first = cause.step <= first.start or cause.name == first.kind
    if is_first or cause.kind in PROCESS_KINDS or (first.cause is not None and first.cause.is_same(cause)):
        return ""
    return f"{definite_noun_of(cause.kind)} at step {cause.step}"


def main_curve(history: RunHistory) -> Curve | None:
    """Return the loss that a run is compared by, else its validation loss; a resumed training is one curve."""
    curves = run_curves(history)
    drawn = curves.losses or curves.validations
    whole = drawn if resumed_attempt(drawn) is None else join_pieces(drawn)
    return min(whole, key=lambda curve: curve.part, default=None)


def _divergence_step(outcome: str, troubles: list[Finding]) -> int | None:
    if outcome not in LOST_OUTCOMES:
        return None
    lasting = [finding for finding in troubles if not finding.recovered] or troubles
    worst = max((finding.severity for finding in lasting), default=Severity.INFO)
    return min((int(finding.start) for finding in lasting if finding.severity is worst), default=None)


def _skipped(history: RunHistory) -> int:
    """Return the counter, which restarts with each attempt's process; else the skipped steps that a log reports."""
    count = 0
    for metric in history.of("skipped_steps"):
        values = metric.series.values[np.isfinite(metric.series.values)]
        if len(values):
            restarts = np.flatnonzero(np.diff(values) < 0)
            count += int(values[-1] + values[restarts].sum())
    return count or sum(event.kind == "step_skipped" for event in history.reported)


def last_part(values: NDArray[np.float64]) -> int:
    """Return the number of points for the median of a final loss."""
    return min(len(values), max(MIN_FINAL_POINTS, len(values) // FINAL_PARTS))


def final_loss(values: NDArray[np.float64]) -> float | None:
    """Return the loss at the end, which no single lucky batch makes; non-finite where the very last value is."""
    if not len(values):
        return None
    last = values[-last_part(values) :]
    return float(np.median(last)) if np.isfinite(last[-1]) else float(last[-1])


def _best_loss(name: str, finite: NDArray[np.float64], bad: list[Finding]) -> float | None:
    """Return the lowest median of a final loss's number of points, or the lower best level that a divergence has."""
    if not len(finite):
        return None
    size = last_part(finite)
    starts = (*range(0, len(finite) - size + 1, max(1, size // 2)), len(finite) - size)
    rises = (finding.facts_as(LastingRiseFacts) for finding in bad if finding.metric == name)
    bests = [rise.best for rise in rises if rise is not None]
    return min([*bests, *(float(np.median(finite[start : start + size])) for start in starts)])


def _course(curve: Curve) -> LossLevels | None:
    levels = read_levels(curve)
    if levels is None or not np.isfinite(levels.noise):
        return None
    steps = tuple(levels.steps.tolist())
    if levels.logarithmic:
        return LossLevels(steps, tuple(np.exp(levels.x).tolist()), levels.noise)
    finite = curve.values[curve.finite]
    largest = int(np.argmax(np.abs(finite)))
    unit = float(finite[largest] / levels.raw_x[largest]) if levels.raw_x[largest] else 1.0  # they are in spreads
    return LossLevels(steps, tuple((levels.x * unit).tolist()), levels.noise * unit, logarithmic=False)


def _speed(history: RunHistory, main: Curve | None) -> float | None:
    """Return steps per second: the median where steps were timed, else that of the whole span."""
    times = _values(history, "step_time")
    if len(times) and np.median(times):
        return 1 / float(np.median(times))
    series = next((metric.series for metric in history.metrics if main is not None and metric.name == main.name), None)
    if series is None or len(series) < 2 or history.ordinal_steps:
        return None
    seconds, steps = float(series.times[-1] - series.times[0]), int(series.steps[-1] - series.steps[0])
    return steps / seconds if seconds > 0 and steps > 0 else None


def _values(history: RunHistory, quantity: str) -> NDArray[np.float64]:
    """Return the finite values of a quantity of the whole training."""
    values = next((restore_infinities(metric.series.values) for metric in history.of(quantity)), np.zeros(0))
    return values[np.isfinite(values)]
