"""Looks for the cause in the gradients: an explosion before, a jump together with the loss, or none left at all."""

from __future__ import annotations

import numpy as np

from mlflow_stability.diagnosis.curves import RunCurves
from mlflow_stability.diagnosis.gradient_rise_rule import GradientRiseRule
from mlflow_stability.diagnosis.look import Look, is_it, is_not, not_seen
from mlflow_stability.diagnosis.surroundings import Surroundings, shown
from mlflow_stability.vocabulary.counted import counted
from mlflow_stability.vocabulary.episode import Episode

EXPLODED = 5.0
"""A gradient norm of so many times its usual one."""
DEVIATIONS = 6.0
"""And so many deviations of its own noise above it."""
WITH_IT = 3.0
"""A gradient norm that jumps together with the loss jumps to so many times its usual one."""
VANISHED = 1e-5
"""A gradient norm of the whole model below this moves nothing."""
OF_ITS_START = 0.1
"""Or below this share of what it was at the start, while the loss stands still."""
RECENT = 10
"""So many points before the first bad one count as what came just before."""
SHORT = 3
"""A spike of so many logged points or fewer is that of a batch."""
FEWEST_POINTS = 50
"""A curve of fewer points may log an epoch in each, and no batch."""
FEWEST = 16
"""With fewer gradient norms before, nobody knows what is usual."""


def explosion_look(around: Surroundings) -> Look:
    """Whether the gradients exploded before the loss did."""
    if around.norm is None:
        return not_seen("gradient norm: not logged")
    before = around.before(around.norm, 200)
    before = before[before > 0]
    if len(before) < FEWEST:
        there = counted(len(before), "value")
        return not_seen(f"gradient norm: {there} before it, {FEWEST} are needed to know what is usual")
    recent, earlier = before[-RECENT:], before[:-RECENT] if len(before) > 2 * RECENT else before
    usual, spread = _usual(earlier)
    highest = float(recent.max())
    if highest > EXPLODED * usual and np.log(highest) > np.log(usual) + DEVIATIONS * spread:
        return is_it(
            "gradient_explosion",
            f"The gradients exploded first: their norm reached {shown(highest)} within the {len(recent)} points "
            f"before, from a usual {shown(usual)}.",
            f"gradient norm x {highest / usual:.3g}",
        )
    lowest = float(recent.min())
    return is_not(f"gradient norm: {shown(lowest)} to {shown(highest)} just before, usually {shown(usual)}")


def bad_batch_look(around: Surroundings) -> Look:
    """Whether it was one batch: a spike of a step or a few that came back by itself."""
    episode, loss = around.episode, around.loss
    if loss is None:
        return not_seen("batch: no loss was logged")
    points = int(((loss.steps >= episode.start) & (loss.steps <= episode.end)).sum())
    if not episode.recovered or points > SHORT:
        lasted = "did not come back" if not episode.recovered else f"lasted {points} logged points"
        return is_not(f"a single bad batch: it {lasted}")
    if loss.quantity == "val_loss":
        return is_not(f"a bad batch: {loss.name} jumped, which no training batch does for one validation alone")
    width = "one logged point" if points == 1 else f"{points} logged points"
    evidence = [f"it lasted {width} and came back by itself"]
    jumped = ""
    if around.norm is not None:
        before, at = around.before(around.norm, 200), around.at(around.norm)
        at = at[np.isfinite(at)]
        if len(before) >= FEWEST and len(at):
            usual = float(np.median(before))
            if float(at.max()) > WITH_IT * usual > 0:
                jumped = ", and the gradient norm with it" if episode.kind != "gradient_explosion" else ""
                evidence.append(f"gradient norm {shown(float(at.max()))} in that step, usually {shown(usual)}")
            else:
                evidence.append(f"gradient norm {shown(float(at.max()))} in that step, as usual")
    if not jumped and len(loss.values) < FEWEST_POINTS:
        return not_seen(
            f"batch: with {len(loss.values)} logged points nobody knows how many batches one point stands for"
        )
    norm = f"the gradient norm of {episode.place}" if episode.place else "the gradient norm"
    what = norm if episode.kind == "gradient_explosion" else "the loss"
    return is_it("bad_batch", f"A bad batch at step {episode.start}: {what} jumped{jumped} and came back.", *evidence)


def growth_look(around: Surroundings) -> Look:
    """Whether the gradient norm grew long before, too gradually to stand out just before."""
    grown = _growth(around)
    if grown is None:
        return is_not("a gradient norm that grew gradually") if around.norm else not_seen("gradient norm: not logged")
    what = "" if around.episode.kind == "gradient_explosion" else f"; the loss followed at step {around.episode.start}"
    return is_it(
        "gradient_explosion",
        f"The gradients grew without end from step {grown.start} on, from a norm of {shown(grown.evidence['level'])} "
        f"to {shown(grown.evidence['last'])}{what}.",
        f"gradient norm x {grown.evidence['grown']:.3g}",
    )


def _growth(around: Surroundings) -> Episode | None:
    if around.norm is None or around.loss is None:
        return None
    found = GradientRiseRule().find(RunCurves((around.loss,), (), (around.norm,), ()))
    return next((each for each in found if each.start <= max(around.episode.start, around.episode.peak)), None)


def vanishing_look(around: Surroundings) -> Look:
    """Whether there was no gradient left to learn from."""
    if around.norm is None:
        return not_seen("gradient norm: not logged")
    values = around.norm.values[around.norm.finite]
    if len(values) < FEWEST:
        return not_seen(f"gradient norm: {counted(len(values), 'value')}, {FEWEST} are needed")
    tenth = max(3, len(values) // 10)
    first, last = float(np.median(values[:tenth])), float(np.median(values[-tenth:]))
    if last < VANISHED or last < OF_ITS_START * first:
        course = f"fell from {shown(first)} to {shown(last)}" if last < 0.9 * first else ""
        course = course or f"was {shown(first)} at the start and {shown(last)} at the end"
        return is_it(
            "vanishing_gradients",
            f"The gradients vanished: their norm {course}, too little to learn from.",
            f"gradient norm x {last / first:.2g}" if first > 0 else "the gradient norm was 0 from the start",
        )
    return is_not(f"vanishing gradients: norm {shown(last)} at the end, {shown(first)} at the start")


def _usual(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> tuple[float, float]:
    logs = np.log(values)
    middle = float(np.median(logs))
    return float(np.exp(middle)), 1.4826 * float(np.median(np.abs(logs - middle))) + 0.02
