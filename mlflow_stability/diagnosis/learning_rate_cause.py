"""Looks for the cause in the learning rate: a jump, a missing warm-up, a peak that is too high, a rate too low."""

from __future__ import annotations

import numpy as np

from mlflow_stability.diagnosis.curves import Curve, curves_of
from mlflow_stability.diagnosis.look import Look, is_it, is_not, not_seen
from mlflow_stability.diagnosis.step_size_cause import lower_by, step_size_look
from mlflow_stability.diagnosis.surroundings import JUST_BEFORE, Surroundings, shown

JUMP = 1.5
"""A learning rate that is multiplied by so much from one point to the next jumped, unless it was warming up."""
HIGH_FOR_ADAM = 1e-2
"""Optimizers of the Adam family hardly ever stand more."""
FAR_TOO_HIGH = 10.0
"""So many times that much is too high whatever the schedule."""
NONE_TO_SPEAK_OF = 1e-8
"""With a learning rate below this nothing moves."""
NEAR_TOP = 0.7
"""From this share of its highest value on, a learning rate that is still rising is near its top."""

NEW_GROUND = 100
"""Over so many points before the trouble a rate is compared with all that came before them."""
RAISED = 2.0
"""A rate that has been raised so many times above that went where the training had never been."""


def learning_rate_look(around: Surroundings) -> Look:
    """What the learning rate did before something broke."""
    resumed = _since_the_resume(around)
    if resumed is not None:
        return resumed
    rates = [_until(rate, around.episode.start) for rate in around.rates]
    rates = [(curve, values) for curve, values in rates if len(values)]
    too_large = step_size_look(around)
    if not rates:
        return too_large or not_seen("learning rate: not logged")
    episode = around.episode
    for curve, values in rates:
        jump = _jump(values)
        if jump is not None:
            before, after = float(values[jump - 1]), float(values[jump])
            step = int(curve.steps[np.isfinite(curve.values)][jump])
            earlier = episode.start - step
            since = f", {earlier} step{'s' if earlier > 1 else ''} before the first sign" if earlier > 0 else ""
            return is_it(
                "learning_rate_jump",
                f"The learning rate jumped from {shown(before)} to {shown(after)} at step {step}{since}.",
                f"learning rate x {after / before:.3g} in one step",
            )
    if too_large is not None:
        return too_large
    curve, values = max(rates, key=lambda each: float(each[1].max()))
    now, top = float(values[-1]), float(curve.values[curve.finite].max())
    if len(values) >= 3 and _rising(values) and now >= NEAR_TOP * top:
        return is_it(
            "learning_rate_too_high",
            f"The learning rate had been warmed up to {shown(now)} when it began: more than the model stands yet.",
            f"learning rate rose from {shown(float(values[0]))} to {shown(now)} in the {len(values)} points before",
        )
    ground = float(values[:-NEW_GROUND].max()) if len(values) > NEW_GROUND else 0.0
    if ground > 0 and now >= RAISED * ground:
        return is_it(
            "learning_rate_too_high",
            f"The learning rate had been raised to {shown(now)} when it began; it had not been above {shown(ground)}.",
            f"learning rate x {now / ground:.3g} within {NEW_GROUND} points",
            remedies=(f"Lower the learning rate to {shown(ground)}, which it had stood.",),
        )
    if around.is_early and now > FAR_TOO_HIGH * HIGH_FOR_ADAM and _is_adam(around):
        return is_it(
            "learning_rate_too_high",
            f"The learning rate was {shown(now)} from the start; the Adam family, whose every step moves each weight "
            f"by about that much, hardly ever stands more than {HIGH_FOR_ADAM:g}.",
            f"learning rate {shown(now)} at step {episode.start}",
            remedies=(lower_by(now, now / HIGH_FOR_ADAM),),
        )
    if around.is_early and episode.kind != "loss_spike" and float(values[0]) >= 0.9 * top > 0:
        return is_it(
            "no_warm_up",
            f"The learning rate was {shown(now)}, its highest, from the first step on, without a warm-up.",
            f"it began at step {episode.start}, and the learning rate was {shown(float(values[0]))} from the start",
        )
    if now > HIGH_FOR_ADAM and _is_adam(around):
        return is_it(
            "learning_rate_too_high",
            f"The learning rate was {shown(now)}; the Adam family hardly ever stands more than {HIGH_FOR_ADAM:g}.",
            f"learning rate {shown(now)} at step {episode.start}",
            certainty="possible",
            remedies=(lower_by(now, now / HIGH_FOR_ADAM),) if now >= 2 * HIGH_FOR_ADAM else (),
        )
    return is_not(f"learning rate: {_course(values)}")


def rate_too_low_look(around: Surroundings) -> Look:
    """Whether nothing could move for want of a learning rate."""
    every = [rate.values[rate.finite] for rate in around.rates]
    every = [values for values in every if len(values)]
    if not every:
        return not_seen("learning rate: not logged")
    top = max(float(values.max()) for values in every)
    if top <= NONE_TO_SPEAK_OF:
        return is_it("learning_rate_too_low", f"The learning rate never rose above {shown(top)}: nothing could move.")
    return is_not(f"a learning rate of almost zero: up to {shown(top)}")


def _since_the_resume(around: Surroundings) -> Look | None:
    """Whether the learning rate was another one before the resume after which it began."""
    if "resumed" not in around.episode.evidence:
        return None
    earlier = [each for each in curves_of(around.history, "learning_rate") if each.attempt < around.episode.attempt]
    for rate in around.rates:
        old = max((each for each in earlier if each.name == rate.name), key=lambda each: each.attempt, default=None)
        if old is None or not old.finite.any() or not rate.finite.any():
            continue
        same = old.values[old.finite & (old.steps <= rate.steps[0])]
        before = float(same[-1] if len(same) else old.values[old.finite][-1])
        after = float(rate.values[rate.finite][0])
        if before > 0 and after >= JUMP * before:
            return is_it(
                "learning_rate_jump",
                f"The learning rate was {shown(after)} after the resume at step {int(rate.steps[0])}, and "
                f"{shown(before)} before it.",
                f"learning rate x {after / before:.3g} across the resume",
            )
    return None


def _until(curve: Curve, step: int) -> tuple[Curve, np.ndarray[tuple[int], np.dtype[np.float64]]]:
    """The finite values up to the first bad step."""
    finite = curve.finite
    return curve, curve.values[finite][: int(np.searchsorted(curve.steps[finite], step, side="right"))]


def _jump(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> int | None:
    """Where the rate jumped just before, unless it rose in the same way all the time; None: nowhere."""
    low = max(1, len(values) - JUST_BEFORE)
    for place in range(len(values) - 1, low - 1, -1):
        before, after = float(values[place - 1]), float(values[place])
        if before > 0 and after >= JUMP * before:
            earlier = values[max(0, place - 4) : place]
            warming = len(earlier) < 3 or float(np.diff(earlier).min()) > 0 or earlier[0] <= 0
            if not warming:
                return place
    return None


def _rising(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> bool:
    recent = values[-JUST_BEFORE:]
    return bool(np.all(np.diff(recent[-5:]) >= 0) and recent[-1] > recent[0] * 1.05)


def _is_adam(around: Surroundings) -> bool:
    said = (*around.history.params.items(), *around.history.tags.items())
    return any("adam" in f"{key} {value}".lower() for key, value in said)


def _course(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> str:
    recent = values[-JUST_BEFORE:]
    low, high = float(recent.min()), float(recent.max())
    if high - low <= 1e-3 * high:
        return f"constant at {shown(high)}"
    way = "falling" if recent[-1] < recent[0] else "rising slowly"
    return f"{way} from {shown(float(recent[0]))} to {shown(float(recent[-1]))}, without a jump"
