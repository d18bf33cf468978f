"""Correct findings of a run that is over by what came after them.

`in_hindsight` makes findings of detectors milder, moves the start of a divergence to where the loss left its level, and
drops rises that are only the rounding of the log. `recovered_rises` mentions small rises that passed, many of them in
one sentence. Nothing becomes worse, kinds with thresholds of the user's stay as they are, and what was judged during
training is not touched, but for `without_harm`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from mlflow_stability.curves.curves import NO_TEST, NORMAL_MAD, Curve, RunCurves, median_deviation
from mlflow_stability.curves.levels import is_rounding, read_levels
from mlflow_stability.diagnosis.findings.episodes import end_level
from mlflow_stability.diagnosis.findings.notes import RipplesNote, with_note
from mlflow_stability.kinds.first_look.not_trained import NoGradient
from mlflow_stability.kinds.loss.divergence import SlowRiseFacts
from mlflow_stability.kinds.loss.divergence_rules import ResumeFacts
from mlflow_stability.kinds.loss.loss_spike_curve import SpikeRule
from mlflow_stability.vocabulary.facts import LossEndFacts, LossRiseFacts, PeakFacts
from mlflow_stability.vocabulary.result import Finding, Severity, Statement, Text

BASELINE_POINTS = 32  # values before a finding that show what was normal
RESPONSE_SHARE = 0.1  # a loss that rises by less than this share did not respond to a jump of the gradient
ONSET_POINTS = 32  # maximum number of points between the rise of a loss and the step at which a detector was sure of it
SHORT_SPIKE_POINTS = 3  # a spike of more points is no chance of a single batch
RIPPLE_SHARE = 0.10  # a rise by less than this share that passed is a ripple
RIPPLE_SHARE_BELOW = 0.25  # so is one by less than this, if the loss ended below where it had risen from
MIN_RIPPLES = 3  # from this number on, ripples are one finding
LAST_RIPPLE_FACTOR = 1.5  # maximum ratio of a last rise to the ripples before it for it to be one of them
RECOVERED_SHARE = 0.5  # a loss that lost this share of its rise again, in nats, is on its way down
KINDS_OF_RANGE_TESTS = ("gradient_explosion", "update_ratio_high")
"""What a learning-rate range test brings about before it ends."""
MANY_STARTS = 8  # minimum number of trainings in a log for findings of few of them to be left to chance
USUAL_SHARE = 0.25  # a kind of finding is usual from this share of the trainings on
JUMP_LEVELS = 10  # maximum number of levels, of about a hundred, from a rise to the maximum of a loss that jumped


def in_hindsight(
    findings: Sequence[Finding], by_rules: Sequence[Finding], curves: RunCurves, asked: Collection[str] = ()
) -> list[Finding]:
    """Return the findings of a replay, as they look now that the run is over.

    ``asked``: the kinds that the user set a threshold of, or wants by a classic rule.
    """
    corrected = []
    for finding in findings:
        loss = next((curve for curve in curves.losses if curve.attempt == finding.attempt and curve.has_level), None)
        curve = _curve_of(finding, curves.losses)
        peak, rise = finding.facts_as(PeakFacts), finding.facts_as(LossRiseFacts)
        risen = math.inf if peak is None or rise is None else peak.highest - rise.baseline
        if curve is not None and risen < math.inf and is_rounding(curve.values[curve.finite], risen):
            continue
        if finding.kind == "divergence" and curve is not None:
            finding = _from_onset(finding, curve)
        if finding.kind == "gradient_explosion" and loss is not None and finding.kind not in asked:
            finding = _without_response(finding, loss)
        elif finding.kind == "loss_spike" and finding.kind not in asked:
            finding = _within_noise(finding, by_rules, curves)
        elif finding.kind == "divergence" and finding.recovered and finding.kind not in asked:
            finding = replace(finding, severity=min(finding.severity, Severity.WARNING))
        corrected.append(finding)
    return corrected


def _curve_of(finding: Finding, curves: Sequence[Curve]) -> Curve | None:
    return next((c for c in curves if (c.name, c.attempt) == (finding.metric, finding.attempt)), None)


def _from_onset(finding: Finding, curve: Curve) -> Finding:
    """Move the start to where the loss left its level, a few steps before the detector was sure of it."""
    finite = curve.finite
    steps, values = curve.steps[finite], curve.values[finite]
    first = int(np.searchsorted(steps, finding.start))
    rise = finding.facts_as(LossRiseFacts)
    if rise is None or isinstance(rise, SlowRiseFacts) or not 1 <= first < len(values):
        return finding
    low = max(0, first - ONSET_POINTS)
    high = np.where(values[low : first + 1] > (rise.baseline + rise.value) / 2, 1, -1)
    onset = low + int(np.argmin(np.cumsum(high))) + 1
    return finding.with_span(start=int(steps[min(onset, first)]))


def _without_response(finding: Finding, loss: Curve) -> Finding:
    """Make a jump of the gradient INFO if the loss did not respond."""
    finite = loss.finite
    steps, values = loss.steps[finite], loss.values[finite]
    first, final = np.searchsorted(steps, [finding.start, finding.end + 10 * loss.distance], side="left")
    before, after = values[max(0, first - BASELINE_POINTS) : first], values[first : max(final, first + 3)]
    if finding.severity is not Severity.WARNING or len(before) < 8 or len(after) < 3 or not finite[-1]:
        return finding
    usual = float(np.median(before))
    spread = NORMAL_MAD * median_deviation(before) + 1e-3 * abs(usual)
    if float(after.max()) > usual + max(RESPONSE_SHARE * abs(usual), 5 * spread):
        return finding
    return replace(with_note(finding, Text("The loss did not rise.")), severity=Severity.INFO)


def _within_noise(finding: Finding, by_rules: Sequence[Finding], curves: RunCurves) -> Finding:
    """Make a short spike INFO if it is no higher than the noise of the whole run makes likely."""
    curve = _curve_of(finding, curves.losses)
    if curve is None or finding.severity is not Severity.WARNING or not SpikeRule().judges(curve):
        return finding
    points = int(((curve.steps >= finding.start) & (curve.steps <= finding.end)).sum())
    reach = SHORT_SPIKE_POINTS * curve.distance
    confirmed = any(
        other.kind == "loss_spike"
        and (other.metric, other.attempt) == (finding.metric, finding.attempt)
        and other.start <= finding.end + reach
        and finding.start <= other.end + reach
        for other in by_rules
    )
    if confirmed or points > SHORT_SPIKE_POINTS or not finding.recovered:
        return finding
    return replace(with_note(finding, Text("Within the noise of the whole run.")), severity=Severity.INFO)


def without_harm(findings: Sequence[Finding], curves: RunCurves) -> list[Finding]:
    """Make INFO what did no harm.

    Parameters without a gradient, where the loss fell almost to zero: it needed none of them. Large gradients and
    updates of a learning-rate range test, which goes on until they come.
    """
    judged = [curve for curve in curves.losses if curve.has_level and not curve.part]
    learnt = [(curve.attempt, *curve.steps[[0, -1]].tolist()) for curve in judged if _is_learnt(curve)]
    first, last = next((curve.tested for curve in curves.losses), NO_TEST)

    return [
        replace(finding, severity=Severity.INFO)
        if (finding.kind in KINDS_OF_RANGE_TESTS and first <= finding.start <= last)
        or (
            finding.kind == NoGradient.kind
            and any(attempt == finding.attempt and low <= finding.start <= high for attempt, low, high in learnt)
        )
        else finding
        for finding in findings
    ]


def rare_among_starts(
    findings: Sequence[Finding], starts: Collection[int], asked: Collection[str] = ()
) -> tuple[Finding, ...]:
    """Make INFO the warnings of earlier trainings in a log of many, where few of these have the same kind.

    A log of a hundred trainings holds the rarest course of a hundred, and all but the last one were given up or done.
    """
    if len(starts) < MANY_STARTS:
        return tuple(findings)
    last = max(starts)
    having: dict[str, set[int]] = {}
    for finding in findings:
        if finding.severity > Severity.INFO:
            having.setdefault(finding.kind, set()).add(finding.attempt)

    def is_rare(finding: Finding) -> bool:
        usual = len(having.get(finding.kind, ())) >= USUAL_SHARE * len(starts)
        return finding.severity is Severity.WARNING and finding.attempt != last and not usual

    return tuple(
        replace(finding, severity=Severity.INFO) if is_rare(finding) and finding.kind not in asked else finding
        for finding in findings
    )


def _is_learnt(curve: Curve) -> bool:
    values = curve.values[curve.finite]
    return len(values) > 0 and values.min() > 0 and end_level(values) < curve.floor


def recovered_rises(findings: Sequence[Finding], curves: RunCurves, asked: Collection[str] = ()) -> tuple[Finding, ...]:
    """Return the findings with divergences as what came after shows them; unchanged if ``asked`` for by a rule."""
    if "divergence" in asked:
        return tuple(findings)
    corrected = []
    for finding in findings:
        curve = _curve_of(finding, (*curves.losses, *curves.validations))
        if finding.kind == "divergence" and curve is not None:
            finding = _ripple(finding, curve) if finding.recovered else _falling(finding, curve)
        corrected.append(finding)
    return tuple(_join_ripples(corrected))


def _ripple(finding: Finding, curve: Curve) -> Finding:
    """Make a small slow rise that passed INFO."""
    rise, facts = _slow_rise(finding, math.inf), finding.facts_as(LossRiseFacts)
    level = -math.inf if facts is None else facts.baseline
    is_below = end_level(curve.values[curve.finite]) < level
    if rise < RIPPLE_SHARE or (rise < RIPPLE_SHARE_BELOW and is_below):
        return replace(with_note(finding, Text("The loss recovered.")), severity=Severity.INFO)
    return finding


def _falling(finding: Finding, curve: Curve) -> Finding:
    """Make the jump of a loss that has been falling ever since a WARNING, as in a new stage of a training."""
    levels = read_levels(curve)
    if levels is None or not levels.logarithmic or len(levels) < 3 * JUMP_LEVELS or finding.facts_as(ResumeFacts):
        return finding
    start = max(1, int(np.searchsorted(levels.steps, finding.start, side="right")) - 1)
    before, since = float(np.median(levels.x[max(0, start - 5) : start])), levels.x[start:]
    top = int(np.argmax(since))
    fall = since[top:]
    if top > JUMP_LEVELS or len(fall) < JUMP_LEVELS:
        return finding
    third = len(fall) // 3
    high, early, middle = (
        float(fall[0]),
        float(np.median(fall[:third])),
        float(np.median(fall[third : 2 * len(fall) // 3])),
    )
    last = end_level(fall)
    has_recovered = high - last >= RECOVERED_SHARE * (high - before)
    is_falling = last <= middle + levels.noise and early > middle + levels.noise
    if not has_recovered or not is_falling:
        return finding
    maximum = f"The loss has been falling since its maximum of {math.exp(min(high, 700.0)):.4g}."
    noted = with_note(finding, Text(maximum))
    return replace(noted.with_span(recovered=None), severity=min(finding.severity, Severity.WARNING))


def _slow_rise(finding: Finding, default: float = 0.0) -> float:
    """Return how far a loss rose slowly, as a share of its level."""
    slow = finding.facts_as(SlowRiseFacts)
    return default if slow is None else slow.rise


def _join_ripples(findings: list[Finding]) -> list[Finding]:
    """Make one finding of ripples that come again and again, at the first of them."""
    ripples: dict[tuple[str, int], list[Finding]] = {}
    for finding in findings:
        if finding.kind == "divergence" and finding.recovered and finding.severity is Severity.INFO:
            ripples.setdefault((finding.metric, finding.attempt), []).append(finding)
    kept = findings
    for curve, group in ripples.items():
        if len(group) < MIN_RIPPLES:
            continue
        largest = max(map(_slow_rise, group))
        group = [*group, *(finding for finding in findings if _is_last_ripple(finding, curve, largest))]
        rises = [_slow_rise(finding) for finding in group]
        first, last = group[0], max(finding.end for finding in group)
        note = RipplesNote(first.metric, len(group), last, min(rises), max(rises))
        count = sum(finding.count for finding in group)
        joined = replace(first.with_span(end=last), count=count, statements=(Statement(note, first.start),))
        kept = [joined if finding is first else finding for finding in kept if finding is first or finding not in group]
    return kept


def _is_last_ripple(finding: Finding, curve: tuple[str, int], largest: float) -> bool:
    """Whether a rise that the end of the run cut off is no larger than those that passed before it."""
    alike = finding.kind == "divergence" and (finding.metric, finding.attempt) == curve and not finding.recovered
    is_slow = finding.severity is Severity.WARNING and finding.facts_as(LossEndFacts) is None
    return alike and is_slow and _slow_rise(finding, math.inf) <= LAST_RIPPLE_FACTOR * largest
