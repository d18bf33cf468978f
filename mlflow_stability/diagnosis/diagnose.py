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
from mlflow_stability.detectors.loss_level import LEAST_SIZE, LOSS_RISE
from mlflow_stability.diagnosis.advice import remedies_of, with_fitting_remedies
from mlflow_stability.diagnosis.causes.causes import deciding_cause, with_causes
from mlflow_stability.diagnosis.findings.attempts import kept_losses, kept_points, restored_level, undone_steps
from mlflow_stability.diagnosis.findings.episodes import endings_of, episodes_of, findings_in_log
from mlflow_stability.diagnosis.findings.hindsight import in_hindsight, rare_among_starts, recovered_rises, without_harm
from mlflow_stability.diagnosis.findings.merge import merged
from mlflow_stability.diagnosis.findings.notes import with_affected_layers, with_lines
from mlflow_stability.diagnosis.findings.replay import (
    OF_VALIDATIONS,
    WHERE_JUDGED_LIVE,
    apply_rules,
    cap_severities,
    changed_kinds,
    of_detectors,
    replayed,
    without_unjudged_levels,
)
from mlflow_stability.diagnosis.verdict import MAX_CURVES, MIN_POINTS, outcome_of, verdict_of
from mlflow_stability.kinds.catalog import RULES, default_detectors
from mlflow_stability.kinds.loss.divergence_curve import DivergenceRule
from mlflow_stability.kinds.loss.loss_spike_curve import SpikeRule
from mlflow_stability.kinds.progress.overfitting import OverfittingRule
from mlflow_stability.kinds.progress.plateau import PlateauRule
from mlflow_stability.vocabulary.loss_level import reason_words
from mlflow_stability.vocabulary.result import JUDGED_LIVE, CurveReading, Diagnosis, Finding, NotJudged
from mlflow_stability.vocabulary.run import Metric, RunHistory
from mlflow_stability.vocabulary.text.phrases import counted, some_of

RISE_KINDS = frozenset({"loss_spike", "divergence", "divergence_ahead"})
PROGRESS_KINDS = frozenset({"plateau", "slow_progress", "oscillation", "periodic_loss"})
LOSS_KINDS = RISE_KINDS | PROGRESS_KINDS
VALIDATION_KINDS = frozenset({"overfitting"})
GRADIENT_KINDS = frozenset(
    {"gradient_explosion", "gradient_vanishing", "gradient_imbalance", "layer_explosion", "dead_layer"}
)
MIN_LATER_POINTS, MIN_LATER_SHARE = 10, 0.05
"""The loss has stopped if another metric has this number and this share of its points after the last loss."""
MIN_COMMON_SHARE = 0.5  # a metric is logged together with the loss if it has a value at this share of the loss's steps
MAX_GAPS = 5  # maximum number of gaps that are listed


def loss_that_stopped(history: RunHistory) -> str:
    """Return a clause if the loss stops while what is logged together with it continues: that end says nothing."""
    losses = [metric for metric in history.of("loss") if len(metric.series)]
    if not losses:
        return ""
    main = max(losses, key=_last)
    (attempt, last), unit = _last(main), history.step_unit
    loss_steps = main.series.steps[main.series.attempts == attempt]
    for metric in history.metrics:
        steps = metric.series.steps[metric.series.attempts == attempt]
        is_loss = metric.meaning.quantity in ("loss", "val_loss")
        if metric.meaning.bookkeeping or is_loss or len(steps) < MIN_LATER_POINTS:
            continue
        later = int((steps > last).sum())
        together = np.isin(loss_steps, steps).mean() >= MIN_COMMON_SHARE
        if later >= max(MIN_LATER_POINTS, MIN_LATER_SHARE * len(steps)) and together:
            return (
                f"{main.name} has no value after {unit} {last}, but {metric.name} continues to "
                f"{unit} {int(steps.max())}"
            )
    return ""


def _last(metric: Metric) -> tuple[int, int]:
    series = metric.series
    attempt = int(series.attempts.max())
    return attempt, int(series.steps[series.attempts == attempt].max())


def single_loss(history: RunHistory) -> str:
    """Return a clause if a loss was logged once only, so that there is no curve."""
    losses = [metric for quantity in ("loss", "val_loss") for metric in history.of(quantity) if len(metric.series)]
    if not losses or any(len(metric.series) > 1 for metric in losses):
        return ""
    value, step = float(losses[0].series.values[0]), int(losses[0].series.steps[0])
    return f"{losses[0].name} has a single point, {value:.4g} at {history.step_unit} {step}"


GROWN_TIMES = 20.0  # minimum ratio of the last level to the first of a loss that has grown, and has no judged level


def growth_without_level(curve: Curve, reading: CurveReading) -> str:
    """Return a clause if a loss whose level does not measure progress grew to its end: it may have diverged."""
    first, last = reading.first_level, reading.last_level
    if curve.has_level or first is None or last is None or last < max(LEAST_SIZE, GROWN_TIMES * abs(first)):
        return ""
    return (
        f"{reading.metric} grew from {first:.4g} to {last:.4g} at the end; its level was not judged, because "
        f"{reason_words(curve.level)}"
    )


def limits_of(history: RunHistory, curves: RunCurves) -> tuple[NotJudged, ...]:
    limits: list[NotJudged] = []
    losses = [curve for curve in curves.losses if not curve.part]
    if not losses:
        reason = single_loss(history) or "no training loss was logged"
        limits.append(NotJudged(f"Spikes, divergence and plateaus of the training loss: {reason}.", LOSS_KINDS))
    else:
        longest = max(losses, key=lambda curve: len(curve.values))
        points = len(longest.values)
        for judged, kinds, needed in (
            ("Spikes and divergence", RISE_KINDS, max(SpikeRule().fewest_points, DivergenceRule().fewest_points)),
            ("Plateaus", PROGRESS_KINDS, PlateauRule().fewest_points),
        ):
            if points < needed:
                sentence = f"{judged}: {longest.name} has {counted(points, 'point')}, {needed} are needed."
                limits.append(NotJudged(sentence, kinds))
        limits += [NotJudged(sentence, LOSS_KINDS) for sentence in _unjudged_levels(losses)]
    stopped = loss_that_stopped(history)
    if stopped:
        limits.append(NotJudged(f"The end of the training: {stopped}."))
    validations = max((len(curve.values) for curve in curves.validations), default=0)
    needed = OverfittingRule().fewest_validations
    if not validations:
        limits.append(NotJudged("Overfitting: no validation loss was logged.", VALIDATION_KINDS))
    elif validations < needed:
        sentence = f"Overfitting: {counted(validations, 'validation')}, {needed} are needed."
        limits.append(NotJudged(sentence, VALIDATION_KINDS))
    if not curves.norms:
        limits.append(NotJudged("Gradients: no gradient norm was logged.", GRADIENT_KINDS))
    if history.gaps:
        missing = ", ".join(f"{gap.first_step}-{gap.last_step}" for gap in history.gaps[:MAX_GAPS])
        limits.append(NotJudged(f"Steps missing from the record: {missing}."))
    return tuple(limits)


def _unjudged_levels(losses: Sequence[Curve]) -> list[str]:
    """Return a sentence for each reason why losses were not judged by their level."""
    names: dict[str, dict[str, None]] = {}
    for curve in losses:
        if not curve.has_level:
            names.setdefault(reason_words(curve.level), {})[curve.name] = None
    return [
        f"The level of {some_of(list(metrics))} was not judged: {reason}. Judged were non-finite values, a growth by a "
        f"factor of {LOSS_RISE:,.0f}, gradients, weights and layers, as far as they were recorded."
        for reason, metrics in names.items()
    ]


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
    measured = any(curve.has_level and len(curve.values) >= MIN_POINTS for curve in shown)
    measured = measured or bool(drawn and curves.norms)
    stopped = loss_that_stopped(history)
    levelled = {curve.name for curve in shown if curve.has_level}
    main = readings[0] if readings and readings[0].metric in levelled and not stopped else None
    of_main = [curve for curve in drawn if main is not None and curve.name == main.metric]
    grown = growth_without_level(shown[0], readings[0]) if readings and readings[0].metric == shown[0].name else ""
    outcome = outcome_of(
        findings,
        readings,
        history.outcome,
        measured=measured and not stopped and not grown,
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
            stopped or grown or single_loss(history),
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
    """Return the curves with a reading, resumed ones joined: that of the whole model, or longest training, first."""
    pieces = list(curves)
    shown = sorted(pieces if resumed is None else join_pieces(pieces), key=lambda curve: curve.part)
    of_main = [curve for curve in shown if curve.name == shown[0].name]
    longest = max(of_main, key=lambda curve: len(curve.values), default=None)
    return sorted(shown, key=lambda curve: curve is not longest)[:MAX_CURVES]


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
    over = recovered_rises(cap_severities(findings), curves, asked)
    return rare_among_starts(over, {curve.attempt for curve in curves.losses}, asked)


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
