"""Looks for the cause in the first steps: updates that were too large for weights just drawn, without a warm-up.

In: the learning rate, the size of updates and the loss of the first steps. Out: whether the rate stood at its highest
from the first step on, whether its first updates moved the weights by far more than updates usually do, and whether the
loss rose on them at once. Only all three together say it: an update as large can be right for weights that start at
nothing, and a loss rises now and then by itself. Where updates were so large that no warm-up would have helped, the
learning rate itself is too high.
"""

from __future__ import annotations

import numpy as np

from mlflow_stability.diagnosis.look import Look, is_it, is_not, not_seen
from mlflow_stability.diagnosis.step_size_cause import ABSURD, too_high
from mlflow_stability.diagnosis.surroundings import Surroundings, shown

FIRST_STEPS = 4
"""The updates of so many steps at the start are first ones, ..."""
LARGE = 0.02
"""... and too large above this share of the weights' norm; a thousandth is usual."""
AT_TOP = 0.9
"""A rate that begins at this share of its highest value or above was not warmed up."""
ROSE = 1.05
"""The loss is that much higher after the first update, or the second, than before it."""


def first_steps_look(around: Surroundings) -> Look:
    """Whether weights just drawn were hurt by the first updates."""
    if not around.span.begins_training:
        return not_seen("first steps: the training had been set back since")
    rates = [each.values[each.finite] for each in around.rates]
    rates = [each for each in rates if len(each)]
    ratio = next((each for each in around.of("update_ratio") if not each.place), None)
    if not rates or ratio is None or around.loss is None or not around.every_step:
        return not_seen("first steps: learning rate, updates and loss of each of them were not logged")
    start = int(around.loss.steps[0])
    first = (ratio.steps < start + FIRST_STEPS) & ratio.finite
    updates = ratio.values[first]
    losses = around.loss.values[:3]
    rate = max(rates, key=lambda each: float(each.max()))
    if len(updates) == 0 or len(losses) < 3 or not np.isfinite(losses).all():
        return not_seen("first steps: their updates were not measured")
    moved, rose = float(updates.max()), float(losses[1:].max() / losses[0]) if losses[0] > 0 else 0.0
    if float(rate[0]) < AT_TOP * float(rate.max()) or moved < LARGE or rose < ROSE:
        return is_not(
            f"the first steps: an update of {moved:.2%} of the weights, a learning rate of {shown(float(rate[0]))}, "
            f"{shown(float(rate.max()))} at most"
        )
    answer = f"the loss rose from {shown(float(losses[0]))} to {shown(float(losses[1:].max()))} on"
    if moved >= ABSURD:
        return too_high(around, moved, int(ratio.steps[first][int(np.argmax(updates))]), f"T{answer[1:]} it.")
    return is_it(
        "no_warm_up",
        f"The learning rate was {shown(float(rate[0]))}, its highest, from the first step on, without a warm-up: the "
        f"first updates moved the weights by up to {moved:.1%} of their norm, and {answer} them.",
        "0.1 % of the weights is what an update usually moves",
        since=start,
    )
