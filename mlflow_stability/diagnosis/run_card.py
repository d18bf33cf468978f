"""Condenses a run to what a comparison of many needs.

In: everything that is known of it, and the diagnosis of it. Out: a `RunCard`. Guarantees: nothing is looked up, so the
same history and diagnosis give the same card; what cannot be told is None, never zero.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.curves.curves import Curve, join_pieces, restore_infinities, resumed_attempt, run_curves
from mlflow_stability.curves.levels import make_sketch, read_levels
from mlflow_stability.diagnosis.verdict import definite_noun_of, final_loss, last_part
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

OURS = "stability."
"""What the names of our own parameters begin with."""


def run_card_of(history: RunHistory, diagnosis: Diagnosis) -> RunCard:
    """The card of one run."""
    with np.errstate(all="ignore"):
        return _card(history, diagnosis)


def _card(history: RunHistory, diagnosis: Diagnosis) -> RunCard:
    main = main_curve(history)
    about_training = [each for each in _bad(diagnosis) if each.kind not in PROCESS_KINDS]
    first, last = diagnosis.steps or (None, None)
    if history.format == "recorded" and main is not None and len(main.steps):
        first = int(main.steps[0])  # a script may have logged a validation at step 0, before its first step
    reading = diagnosis.curves[0] if diagnosis.curves else None
    return RunCard(
        source=diagnosis.source,
        name=diagnosis.name,
        format=diagnosis.format,
        params=_short(history.params),
        tags=dict(history.tags),
        outcome=diagnosis.outcome,
        verdict=diagnosis.verdict,
        severity=diagnosis.severity,
        cause="" if diagnosis.cause is None else diagnosis.cause.name,
        cause_statement="" if diagnosis.cause is None else diagnosis.cause.statement,
        cause_explains=_explained(diagnosis, about_training),
        ended=diagnosis.ended,
        first_step=first,
        last_step=last,
        every=_every(main),
        marks=tuple(Mark(e.kind, e.severity, int(e.start), int(e.end), e.recovered) for e in diagnosis.findings),
        onset=min((int(each.start) for each in about_training), default=None),
        divergence=_lost_at(diagnosis.outcome, about_training),
        spikes_in_divergence=_spikes_within(about_training),
        rolled_back=_rolled_back(history),
        skipped=_skipped(history),
        loss="" if main is None else main.name,
        finite_share=1.0 if main is None or not len(main.finite) else float(main.finite.mean()),
        first_loss=None if main is None or not main.finite.any() else float(main.values[main.finite][0]),
        final_loss=None if main is None else final_loss(main.values),
        best_loss=None if main is None else _best(main, diagnosis),
        spike_score=None if reading is None else reading.spike_score,
        steps_per_second=_speed(history, main),
        overhead=_usual(history, "overhead_fraction"),
        peak_learning_rate=_highest(history, "learning_rate"),
        course=None if main is None else _course(main),
        sketch=None if main is None else make_sketch(main),
        notes=diagnosis.notes,
        cannot_tell=tuple(map(str, diagnosis.cannot_tell)),
    )


def _explained(diagnosis: Diagnosis, about_training: list[Finding]) -> str:
    """The finding that the cause explains, where that is not the first one."""
    cause = diagnosis.cause
    if cause is None:
        return ""
    first = min(about_training, key=lambda each: (each.attempt, each.start), default=None)
    if first is None or cause.step is None or cause.step <= first.start or cause.kind in PROCESS_KINDS:
        return ""
    if cause.name == first.kind:  # the first finding is the cause itself
        return ""
    if first.cause is not None and first.cause.is_same(cause):
        return ""
    return f"{definite_noun_of(cause.kind)} at step {cause.step}"


def main_curve(history: RunHistory) -> Curve | None:
    """The loss that a run is compared by, a training that was resumed as one curve; the validation loss for want."""
    curves = run_curves(history)
    drawn = curves.losses or curves.validations
    whole = drawn if resumed_attempt(drawn) is None else join_pieces(drawn)
    return min(whole, key=lambda curve: curve.part, default=None)


def _bad(diagnosis: Diagnosis) -> list[Finding]:
    return [each for each in diagnosis.findings if each.severity > Severity.INFO]


def _lost_at(outcome: str, troubles: list[Finding]) -> int | None:
    if outcome not in LOST_OUTCOMES:
        return None
    lasting = [each for each in troubles if not each.recovered] or troubles
    worst = max((each.severity for each in lasting), default=Severity.INFO)
    return min((int(each.start) for each in lasting if each.severity is worst), default=None)


def _spikes_within(troubles: list[Finding]) -> tuple[int, ...]:
    return tuple(sorted({step for each in troubles for step in each.spikes}))


def _rolled_back(history: RunHistory) -> int:
    back = [each.facts for each in history.events or () if isinstance(each.facts, RollbackFacts)]
    return sum(each.steps_lost - (each.steps_regained or 0) for each in back)


def _skipped(history: RunHistory) -> int:
    """From the counter, which begins anew with each attempt's process; else from what the log says in words."""
    counted = 0
    for metric in history.of("skipped_steps"):
        values = metric.series.values[np.isfinite(metric.series.values)]
        if len(values):
            restarts = np.flatnonzero(np.diff(values) < 0)
            counted += int(values[-1] + values[restarts].sum())
    return counted or sum(each.kind == "step_skipped" for each in history.reported)


def _best(main: Curve, diagnosis: Diagnosis) -> float | None:
    """The lowest level of as many points as make a final loss; where a divergence tells of a lower one, that one."""
    known = main.values[main.finite]
    if not len(known):
        return None
    size = last_part(known)
    starts = range(0, len(known) - size + 1, max(1, size // 2))
    rises = (each.known(LastingRiseFacts) for each in _bad(diagnosis) if each.metric == main.name)
    told = [rise.best for rise in rises if rise is not None]
    return min([*told, *(float(np.median(known[each : each + size])) for each in (*starts, len(known) - size))])


def _course(curve: Curve) -> LossLevels | None:
    levels = read_levels(curve)
    if levels is None or not np.isfinite(levels.noise):
        return None
    if levels.logarithmic:
        return LossLevels(tuple(levels.steps.tolist()), tuple(np.exp(levels.x).tolist()), levels.noise)
    known = curve.values[curve.finite]
    far = int(np.argmax(np.abs(known)))
    unit = float(known[far] / levels.raw_x[far]) if levels.raw_x[far] else 1.0  # such levels come in units of a spread
    steps, found = tuple(levels.steps.tolist()), tuple((levels.x * unit).tolist())
    return LossLevels(steps, found, levels.noise * unit, logarithmic=False)


def _speed(history: RunHistory, main: Curve | None) -> float | None:
    """Steps a second: the usual one where steps were timed, else that of the whole span."""
    usual = _usual(history, "step_time")
    if usual:
        return 1 / usual
    series = next((metric.series for metric in history.metrics if main is not None and metric.name == main.name), None)
    if series is None or len(series) < 2 or history.ordinal_steps:
        return None
    seconds, steps = float(series.times[-1] - series.times[0]), int(series.steps[-1] - series.steps[0])
    return steps / seconds if seconds > 0 and steps > 0 else None


def _usual(history: RunHistory, quantity: str) -> float | None:
    values = _values(history, quantity)
    return float(np.median(values)) if len(values) else None


def _highest(history: RunHistory, quantity: str) -> float | None:
    values = _values(history, quantity)
    return float(values.max()) if len(values) else None


def _values(history: RunHistory, quantity: str) -> NDArray[np.float64]:
    """The finite values of a quantity of the whole training."""
    found = next((restore_infinities(metric.series.values) for metric in history.of(quantity)), np.zeros(0))
    return found[np.isfinite(found)]


def _every(main: Curve | None) -> int:
    """How many steps lie between two values of the loss; 1 where it is not known."""
    return 1 if main is None or len(main.steps) < 2 else max(1, round(float(np.median(np.diff(main.steps)))))


def _short(params: Mapping[str, str]) -> dict[str, str]:
    """The parameters, ours under their short name where the script has none of that name."""
    named = {name: value for name, value in params.items() if not name.startswith(OURS)}
    for name, value in params.items():
        if name.startswith(OURS):
            named.setdefault(name.removeprefix(OURS), value)
    return named
