"""Corrects what detectors say of a run that is over by what came after.

In: episodes that a replay found, what the rules of whole curves found, and the curves. Out: the same episodes, some of
them milder, a divergence from where the loss left its level, and none that is only the log's rounding. Guarantees: none
becomes worse, what is above a threshold that somebody asked for is not made milder, and nothing that was judged while
the run trained is touched.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from mlflow_stability.curves.curves import NORMAL_MAD, Curve, RunCurves, median_deviation
from mlflow_stability.curves.levels import is_rounding
from mlflow_stability.diagnosis.findings.notes import Outcome, OutcomeNote, with_note
from mlflow_stability.kinds.loss.divergence import SlowRiseFacts
from mlflow_stability.kinds.loss.loss_spike_curve import SpikeRule
from mlflow_stability.vocabulary.facts import LossRiseFacts, PeakFacts
from mlflow_stability.vocabulary.result import Finding, Severity

BEFORE = 32
"""So many values before an episode say what was normal."""
ANSWER = 0.1
"""A loss that rises by less than this share did not answer to a jump of the gradient."""
BACK = 32
"""So many points at most lie between the rise of a loss and the step at which a detector was sure of it."""
SHORT = 3
"""A spike of so many points or fewer is what the rule of whole curves finds as well."""


def in_hindsight(
    seen: Sequence[Finding], found: Sequence[Finding], curves: RunCurves, asked: Collection[str] = ()
) -> list[Finding]:
    """The episodes of a replay, as they look now that the run is over.

    ``asked``: the kinds that somebody set a threshold of, or wants by a classic rule; those stay as they are.
    """
    corrected = []
    for each in seen:
        loss = next((one for one in curves.losses if one.attempt == each.attempt and one.has_level), None)
        curve = _curve(curves, each)
        if curve is not None and _rounded(each, curve):
            continue
        if each.kind == "divergence" and curve is not None:
            each = _dated(each, curve)
        if each.kind == "gradient_explosion" and loss is not None and each.kind not in asked:
            each = _unanswered(each, loss)
        elif each.kind == "loss_spike" and each.kind not in asked:
            each = _within_its_noise(each, found, curves)
        elif each.kind == "divergence" and each.recovered and each.kind not in asked:
            each = replace(each, severity=min(each.severity, Severity.WARNING))
        corrected.append(each)
    return corrected


def _curve(curves: RunCurves, episode: Finding) -> Curve | None:
    return next((one for one in curves.losses if (one.name, one.attempt) == (episode.metric, episode.attempt)), None)


def _rounded(episode: Finding, curve: Curve) -> bool:
    """Whether a rise is one of a step or two of the log's rounding."""
    peak, rise = episode.known(PeakFacts), episode.known(LossRiseFacts)
    if peak is None or rise is None:
        return False
    return is_rounding(curve.values[curve.finite], peak.highest - rise.baseline)


def _dated(episode: Finding, curve: Curve) -> Finding:
    """From where the loss left its level, which the detector was sure of only some steps later."""
    finite = curve.finite
    steps, values = curve.steps[finite], curve.values[finite]
    first = int(np.searchsorted(steps, episode.start))
    rise = episode.known(LossRiseFacts)
    if rise is None or isinstance(rise, SlowRiseFacts) or not 1 <= first < len(values):
        return episode
    low = max(0, first - BACK)
    high = np.where(values[low : first + 1] > (rise.baseline + rise.value) / 2, 1, -1)
    left = low + int(np.argmin(np.cumsum(high))) + 1
    return episode.with_span(start=int(steps[min(left, first)]))


def _unanswered(episode: Finding, loss: Curve) -> Finding:
    """A jump of the gradient that the loss did not answer is only mentioned: nothing came of it."""
    finite = loss.finite
    steps, values = loss.steps[finite], loss.values[finite]
    first, final = np.searchsorted(steps, [episode.start, episode.end + 10 * loss.distance], side="left")
    before, after = values[max(0, first - BEFORE) : first], values[first : max(final, first + 3)]
    if episode.severity is not Severity.WARNING or len(before) < 8 or len(after) < 3 or not finite[-1]:
        return episode
    usual = float(np.median(before))
    spread = NORMAL_MAD * median_deviation(before) + 1e-3 * abs(usual)
    if float(after.max()) > usual + max(ANSWER * abs(usual), 5 * spread):
        return episode
    return replace(with_note(episode, OutcomeNote(Outcome.UNANSWERED)), severity=Severity.INFO)


def _within_its_noise(episode: Finding, found: Sequence[Finding], curves: RunCurves) -> Finding:
    """A short spike no higher than the noise of the whole run makes likely is only mentioned."""
    curve = _curve(curves, episode)
    if curve is None or episode.severity is not Severity.WARNING or not SpikeRule().judges(curve):
        return episode
    points = int(((curve.steps >= episode.start) & (curve.steps <= episode.end)).sum())
    confirmed = any(
        each.kind == "loss_spike"
        and (each.metric, each.attempt) == (episode.metric, episode.attempt)
        and each.start <= episode.end + SHORT * curve.distance
        and episode.start <= each.end + SHORT * curve.distance
        for each in found
    )
    if confirmed or points > SHORT or not episode.recovered:
        return episode
    return replace(with_note(episode, OutcomeNote(Outcome.WITHIN_NOISE)), severity=Severity.INFO)
