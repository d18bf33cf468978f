"""Concludes what happened in a run.

In: everything that is known of it. Out: its outcome, episodes with their causes, the cause of what decided the outcome,
remedies, how its curves went, and what is not known. Guarantees: the same history gives the same diagnosis, with
no look at anything else; what was judged while it trained is taken as it was judged; a run that cannot be judged is not
called healthy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from mlflow_stability.curves.curve_shape import read_curve
from mlflow_stability.curves.curves import RunCurves, join_pieces, resumed_attempt, run_curves, start_by_attempt
from mlflow_stability.curves.levels import make_sketch
from mlflow_stability.curves.main_curves import judged_curves
from mlflow_stability.detectors.detector import Detector
from mlflow_stability.diagnosis.advice import remedies_of, with_fitting_remedies
from mlflow_stability.diagnosis.causes.causes import deciding_cause, with_causes
from mlflow_stability.diagnosis.findings.affected_layers import with_affected_layers
from mlflow_stability.diagnosis.findings.downgrade import in_hindsight
from mlflow_stability.diagnosis.findings.episodes import episodes_of
from mlflow_stability.diagnosis.findings.log_messages import endings_of, findings_in_log
from mlflow_stability.diagnosis.findings.merge import merged
from mlflow_stability.diagnosis.findings.notes import in_unit, with_lines
from mlflow_stability.diagnosis.findings.recovered_rises import passed
from mlflow_stability.diagnosis.findings.replay import replayed, without_unjudged_levels
from mlflow_stability.diagnosis.verdict import (
    limits_of,
    loss_that_stopped,
    outcome_of,
    single_loss,
    verdict_of,
)
from mlflow_stability.kinds.catalog import RULES, default_detectors
from mlflow_stability.kinds.rules import (
    OF_VALIDATIONS,
    WHERE_JUDGED_LIVE,
    apply_rules,
    cap_severities,
    changed_kinds,
    of_detectors,
)
from mlflow_stability.vocabulary.loss_level import reason_words
from mlflow_stability.vocabulary.result import JUDGED_LIVE, Diagnosis, Finding, NotJudged
from mlflow_stability.vocabulary.run import RunHistory

MOST_CURVES = 12
"""Of so many curves at most a reading and a sketch are given."""


def diagnosis_of(history: RunHistory, *, detectors: Sequence[Detector] | None = None) -> Diagnosis:
    """The conclusion about one run; ``detectors``: other ones, or other thresholds, than the usual."""
    with np.errstate(all="ignore"):  # a log may hold any number; what overflows here is no finding of its own
        return _concluded(history, detectors)


def _concluded(history: RunHistory, detectors: Sequence[Detector] | None) -> Diagnosis:
    asked = tuple(default_detectors() if detectors is None else detectors)
    curves = run_curves(history)
    steps = _span(history)
    last_attempt = max((curve.attempt for curve in (*curves.losses, *curves.validations)), default=0)
    episodes = _judged(history, curves, asked, (steps[1] - steps[0]) if steps else 0)
    episodes += tuple(endings_of(history, steps[1] if steps else 0, last_attempt))
    resumed = resumed_attempt(curves.losses or curves.validations)
    drawn = (*curves.losses, *curves.validations)
    shown = sorted(drawn if resumed is None else join_pieces(drawn), key=lambda curve: curve.part)[:MOST_CURVES]
    readings = tuple(
        replace(reading, unit=history.step_unit) for curve in shown if (reading := read_curve(curve)) is not None
    )
    measured = any(curve.has_level for curve in drawn) or bool(drawn and curves.norms)
    silence = loss_that_stopped(history)
    levelled = {curve.name for curve in shown if curve.has_level}
    outcome = outcome_of(
        episodes,
        readings,
        history.outcome,
        measured=measured and not silence,
        last_attempt=resumed,
        main=readings[0] if readings and readings[0].metric in levelled and not silence else None,
    )
    episodes = with_lines(
        with_affected_layers(episodes, history, start_by_attempt(history)), history, start_by_attempt(history)
    )
    episodes = in_unit(episodes, history.step_unit)
    episodes = with_fitting_remedies(with_causes(episodes, history, curves), history)
    cause, undecided = deciding_cause(outcome, episodes, history, curves)
    return Diagnosis(
        source=history.source,
        name=history.name,
        format=history.format,
        basis=history.basis,
        outcome=outcome,
        verdict=verdict_of(
            outcome,
            episodes,
            readings,
            history.points,
            silence or single_loss(history),
            without_level={curve.name: reason_words(curve.level) for curve in drawn if not curve.has_level},
        ),
        findings=episodes,
        cause=cause,
        remedies=remedies_of(episodes, cause, outcome),
        curves=readings,
        sketches=tuple(make_sketch(curve) for curve in shown),
        judged=judged_curves(history, curves),
        cannot_tell=(*limits_of(history, curves), *map(NotJudged, undecided)),
        notes=_notes(history, curves, resumed),
        ended=history.outcome,
        steps=steps,
        points=history.points,
        unit=history.step_unit,
    )


def _judged(history: RunHistory, curves: RunCurves, detectors: Sequence[Detector], span: int) -> tuple[Finding, ...]:
    """What detectors and rules say of it, each trouble once."""
    live = history.events is not None
    asked = changed_kinds(detectors)
    found = apply_rules(WHERE_JUDGED_LIVE if live else RULES, curves, detectors)
    if live:
        found += apply_rules(OF_VALIDATIONS, RunCurves((), curves.validations, (), ()), detectors)
    if history.events is not None:
        events = without_unjudged_levels(history.events, history, curves)
    else:
        events = replayed(history, curves, detectors) if history.complete else []
    seen = episodes_of(events, history, curves, start_by_attempt(history), (*default_detectors(), *detectors))
    if not live:
        seen = in_hindsight(seen, found, curves, asked)
        found += of_detectors(findings_in_log(history, curves, start_by_attempt(history)), detectors)
    episodes = cap_severities(merged([*seen, *found], span))
    return episodes if live else passed(episodes, curves, asked)


def _notes(history: RunHistory, curves: RunCurves, resumed: int | None) -> tuple[str, ...]:
    starts = len({curve.attempt for curve in curves.losses})
    if resumed is not None:
        said = f"The training was started {starts} times and continued: the verdict is that of the last start."
        return (*_basis(history), said)
    if starts > 1 and history.events is None:
        return (
            *_basis(history),
            f"The log holds {starts} starts of a training: the verdict is that of the worst part.",
        )
    return _basis(history)


def _basis(history: RunHistory) -> tuple[str, ...]:
    if history.events is not None:
        return (*history.notes, JUDGED_LIVE)
    if not history.complete:
        return (
            *history.notes,
            "The run holds only some of the measured points: judged by the rules for sparse curves only.",
        )
    return history.notes


def _span(history: RunHistory) -> tuple[int, int] | None:
    spans = [
        (int(metric.series.steps.min()), int(metric.series.steps.max()))
        for metric in history.metrics
        if len(metric.series) and not metric.meaning.bookkeeping
    ]
    return (min(low for low, _ in spans), max(high for _, high in spans)) if spans else None
