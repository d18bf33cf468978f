"""Corrects what detectors say of a run that is over by what came after.

In: episodes that a replay found, what the rules of whole curves found, and the curves. Out: the same episodes, some of
them milder. Promised: none becomes worse, and nothing that was judged while the run trained is touched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from mlflow_stability.diagnosis.curves import Curve, RunCurves
from mlflow_stability.diagnosis.spike_rule import SpikeRule
from mlflow_stability.vocabulary.episode import Episode
from mlflow_stability.vocabulary.event import Severity

BEFORE = 32
"""So many values before an episode say what was normal."""
ANSWER = 0.1
"""A loss that rises by less than this share did not answer to a jump of the gradient."""
SHORT = 3
"""A spike of so many points or fewer is what the rule of whole curves finds as well."""


def in_hindsight(seen: Sequence[Episode], found: Sequence[Episode], curves: RunCurves) -> list[Episode]:
    """The episodes of a replay, as they look now that the run is over."""
    corrected = []
    for each in seen:
        loss = next((one for one in curves.losses if one.attempt == each.attempt and not one.game), None)
        if each.kind == "gradient_explosion" and loss is not None:
            each = _unanswered(each, loss)
        elif each.kind == "loss_spike":
            each = _within_its_noise(each, found, curves)
        elif each.kind == "divergence" and each.recovered and each.severity is Severity.CRITICAL:
            each = replace(each, severity=Severity.WARNING)
        corrected.append(each)
    return corrected


def _unanswered(episode: Episode, loss: Curve) -> Episode:
    """A jump of the gradient that the loss did not answer is only mentioned: nothing came of it."""
    finite = loss.finite
    steps, values = loss.steps[finite], loss.values[finite]
    first, final = np.searchsorted(steps, [episode.start, episode.end + 10 * loss.distance], side="left")
    before, after = values[max(0, first - BEFORE) : first], values[first : max(final, first + 3)]
    if episode.severity is not Severity.WARNING or len(before) < 8 or len(after) < 3 or not finite[-1]:
        return episode
    usual = float(np.median(before))
    spread = 1.4826 * float(np.median(np.abs(before - usual))) + 1e-3 * abs(usual)
    if float(after.max()) > usual + max(ANSWER * abs(usual), 5 * spread):
        return episode
    return replace(episode, severity=Severity.INFO, message=f"{episode.message} The loss did not answer.")


def _within_its_noise(episode: Episode, found: Sequence[Episode], curves: RunCurves) -> Episode:
    """A short spike no higher than the noise of the whole run makes likely is only mentioned."""
    curve = next((one for one in curves.losses if (one.name, one.attempt) == (episode.metric, episode.attempt)), None)
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
    message = f"{episode.message} The noise of the whole run reaches as far now and then."
    return replace(episode, severity=Severity.INFO, message=message)
