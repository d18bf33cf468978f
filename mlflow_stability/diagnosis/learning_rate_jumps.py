"""Finds the jumps and the restarts of a logged learning rate, by the definitions of the detectors.

In: the curve of a learning rate. Out: where it jumped, with the rates before and after; where it was restarted on
purpose. Promised: what the detector of jumps excuses, as warm restarts and warm-ups, is no jump here either.
"""

from __future__ import annotations

from dataclasses import dataclass

from mlflow_stability.detectors.detector import Point
from mlflow_stability.detectors.learning_rate_jump import LearningRateJump
from mlflow_stability.detectors.rate_restart import LEAST_RISE, RateRestart
from mlflow_stability.diagnosis.curves import Curve


@dataclass(frozen=True, slots=True)
class RateRise:
    """One rise in one step."""

    step: int
    before: float
    after: float


def jumps_in(rate: Curve) -> list[RateRise]:
    """The jumps, in order of time."""
    if not _rises_at_once(rate):
        return []
    detector = LearningRateJump()
    state, found = detector.begin(), []
    for step, value in _points(rate):
        state, event = detector.step(state, Point("learning_rate", rate.place, step, value))
        if event is not None:
            found.append(RateRise(event.step, event.evidence["before"], event.evidence["learning_rate"]))
    return found


def restart_before(rate: Curve, step: int) -> RateRise | None:
    """The restart to which a rise of the loss at this step belongs; None: there is none."""
    if not _rises_at_once(rate):
        return None
    watch, last, found = RateRestart(), 0.0, None
    for at, value in _points(rate):
        if at > step:
            break
        watch.see(value, at)
        if watch.at == at:
            found = RateRise(at, last, value)
        last = value
    return found if watch.excuses(step) else None


def _points(rate: Curve) -> list[tuple[int, float]]:
    return list(zip(rate.steps[rate.finite].tolist(), rate.values[rate.finite].tolist(), strict=True))


def _rises_at_once(rate: Curve) -> bool:
    """Whether it is worth while to look at each point."""
    values = rate.values[rate.finite]
    return bool((values[1:] >= LEAST_RISE * values[:-1]).any())
