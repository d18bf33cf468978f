"""Conclude what happened in a run: outcome, findings with causes, remedies, curves, and what is not known.

The same history gives the same diagnosis. What was judged during training is kept as it was judged. A run that cannot
be judged is not called healthy.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from mlflow_stability.curves.curve_shape import read_curve
from mlflow_stability.curves.curves import Curve, RunCurves, join_pieces, resumed_attempt, run_curves, start_by_attempt
from mlflow_stability.curves.levels import make_sketch
from mlflow_stability.curves.main_curves import judged_curves
from mlflow_stability.detectors.detector import Detector
from mlflow_stability.diagnosis.advice import remedies_of, with_fitting_remedies
from mlflow_stability.diagnosis.causes.causes import deciding_cause, with_causes
from mlflow_stability.diagnosis.coverage import limits_of, loss_that_stopped, single_loss
from mlflow_stability.diagnosis.findings.affected_layers import with_affected_layers
from mlflow_stability.diagnosis.findings.episodes import episodes_of
from mlflow_stability.diagnosis.findings.hindsight import in_hindsight, recovered_rises, without_harm
from mlflow_stability.diagnosis.findings.log_messages import endings_of, findings_in_log
from mlflow_stability.diagnosis.findings.merge import merged
from mlflow_stability.diagnosis.findings.notes import with_lines
from mlflow_stability.diagnosis.findings.replay import replayed, without_unjudged_levels
from mlflow_stability.diagnosis.findings.undone import kept_losses, kept_points, restored_level, undone_steps
from mlflow_stability.diagnosis.verdict import MAX_CURVES, outcome_of, verdict_of
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


def diagnosis_of(history: RunHistory, *, detectors: Sequence[Detector] | None = None) -> Diagnosis:
    """Diagnose one run, by other detectors or thresholds than the default ones if given."""
    with np.errstate(all="ignore"):  # a log may hold any number; what overflows here is no finding of its own
        return _conclude(history, tuple(default_detectors() if detectors is None else detectors))


def _conclude(history: RunHistory, detectors: Sequence[Detector]) -> Diagnosis:
    curves, starts, steps = run_curves(history), start_by_attempt(history), _span(history)
    drawn = (*curves.losses, *curves.validations)
    last_attempt = max((curve.attempt for curve in drawn), default=0)
    findings = (
        *_findings(history, curves, detectors, (steps[1] - steps[0]) if steps else 0),
        *endings_of(history, steps[1] if steps else 0, last_attempt),
    )
    resumed = resumed_attempt(curves.losses or curves.validations)
    shown = _shown(drawn, resumed)
    undone = undone_steps(history.events, starts)
    kept = _shown([kept_points(curve, undone) for curve in drawn], resumed)
    readings = tuple(
        replace(reading, unit=history.step_unit) for curve in kept if (reading := read_curve(curve)) is not None
    )
    measured = any(curve.has_level for curve in drawn) or bool(drawn and curves.norms)
    stopped = loss_that_stopped(history)
    levelled = {curve.name for curve in shown if curve.has_level}
    main = readings[0] if readings and readings[0].metric in levelled and not stopped else None
    of_main = [curve for curve in drawn if main is not None and curve.name == main.metric]
    outcome = outcome_of(
        findings,
        readings,
        history.outcome,
        measured=measured and not stopped,
        last_attempt=resumed,
        main=main,
        restored=restored_level(of_main[-1], undone) if of_main else None,
    )
    findings = with_lines(with_affected_layers(findings, history, starts), history, starts)
    findings = tuple(replace(finding, unit=history.step_unit) for finding in findings)
    findings = with_fitting_remedies(with_causes(findings, history, curves), history, curves)
    cause, undecided = deciding_cause(outcome, findings, history, curves)
    return Diagnosis(
        source=history.source,
        name=history.name,
        format=history.format,
        basis=history.basis,
        outcome=outcome,
        verdict=verdict_of(
            outcome,
            findings,
            readings,
            history.points,
            stopped or single_loss(history),
            without_level={curve.name: reason_words(curve.level) for curve in drawn if not curve.has_level},
        ),
        findings=findings,
        cause=cause,
        remedies=remedies_of(findings, cause, outcome),
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


def _shown(curves: Iterable[Curve], resumed: int | None) -> list[Curve]:
    """Return the curves with a reading, that of the whole model first; pieces of a resumed training are joined."""
    pieces = list(curves)
    return sorted(pieces if resumed is None else join_pieces(pieces), key=lambda curve: curve.part)[:MAX_CURVES]


def _findings(history: RunHistory, curves: RunCurves, detectors: Sequence[Detector], span: int) -> tuple[Finding, ...]:
    """Return what detectors and rules find, each trouble once."""
    asked, starts = changed_kinds(detectors), start_by_attempt(history)
    if history.events is not None:  # judged during training
        kept = kept_losses(curves, undone_steps(history.events, starts))
        by_rules = apply_rules(WHERE_JUDGED_LIVE, kept, detectors)
        by_rules += apply_rules(OF_VALIDATIONS, RunCurves((), kept.validations, (), ()), detectors)
        events = without_unjudged_levels(history.events, history, curves)
    else:
        by_rules = apply_rules(RULES, curves, detectors)
        events = replayed(history, curves, detectors) if history.complete else []
    by_detectors = episodes_of(events, history, curves, starts, (*default_detectors(), *detectors))
    if history.events is not None:
        return cap_severities(without_harm(merged([*by_detectors, *by_rules], span), curves))
    by_detectors = in_hindsight(by_detectors, by_rules, curves, asked)
    by_rules += of_detectors(findings_in_log(history, curves, starts), detectors)
    findings = without_harm(merged([*by_detectors, *by_rules], span), curves)
    return recovered_rises(cap_severities(findings), curves, asked)


def _notes(history: RunHistory, curves: RunCurves, resumed: int | None) -> tuple[str, ...]:
    notes = [*history.notes]
    if history.events is not None:
        notes.append(JUDGED_LIVE)
    elif not history.complete:
        notes.append("The run holds only some of the measured points: judged by the rules for sparse curves only.")
    starts = len({curve.attempt for curve in curves.losses})
    if resumed is not None:
        notes.append(f"The training was started {starts} times and continued: the verdict is that of the last start.")
    elif starts > 1 and history.events is None:
        notes.append(f"The log holds {starts} starts of a training: the verdict is that of the worst part.")
    return tuple(notes)


def _span(history: RunHistory) -> tuple[int, int] | None:
    spans = [
        (int(metric.series.steps.min()), int(metric.series.steps.max()))
        for metric in history.metrics
        if len(metric.series) and not metric.meaning.bookkeeping
    ]
    return (min(low for low, _ in spans), max(high for _, high in spans)) if spans else None
