"""Find jumps of a learning rate, and warm restarts, in its whole curve."""

from __future__ import annotations

from dataclasses import dataclass

from mlflow_stability.curves.curves import Curve
from mlflow_stability.detectors.detector import Point
from mlflow_stability.detectors.learning_rate_restart import MIN_RISE, RateRestart
from mlflow_stability.kinds.optimizer.learning_rate_jump import LearningRateJump, LearningRateJumpFacts


@dataclass(frozen=True, slots=True)
class RateRise:
    step: int
    before: float
    after: float


def jumps_in(rate: Curve) -> list[RateRise]:
    """Return the jumps that the detector finds, in order of time."""
    if not _rises_in_one_step(rate):
        return []
    detector = LearningRateJump()
    state, jumps = detector.begin(), []
    for step, value in _points(rate):
        state, event = detector.step(state, Point("learning_rate", rate.place, step, value))
        if event is not None and isinstance(event.facts, LearningRateJumpFacts):
            jumps.append(RateRise(event.step, event.facts.before, event.facts.learning_rate))
    return jumps


def restart_before(rate: Curve, step: int) -> RateRise | None:
    """Return the warm restart that explains a rise of the loss at this step, or None."""
    if not _rises_in_one_step(rate):
        return None
    watch, last, restart = RateRestart(), 0.0, None
    for at, value in _points(rate):
        if at > step:
            break
        watch.see(value, at)
        if watch.at == at:
            restart = RateRise(at, last, value)
        last = value
    return restart if watch.excuses(step) else None


def _points(rate: Curve) -> list[tuple[int, float]]:
    return list(zip(rate.steps[rate.finite].tolist(), rate.values[rate.finite].tolist(), strict=True))


def _rises_in_one_step(rate: Curve) -> bool:
    """Return whether any point may be a jump, so that going through all of them is worth while."""
    return bool((rate.values[rate.finite][1:] >= MIN_RISE * rate.values[rate.finite][:-1]).any())
