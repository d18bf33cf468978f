"""Looks for the cause in the numbers: an overflow before the NaN, a loss scale that collapsed."""

from __future__ import annotations

import numpy as np

from mlflow_stability.diagnosis.look import Look, is_it, is_not, not_seen
from mlflow_stability.diagnosis.surroundings import Surroundings, shown

HALVINGS = 3
"""So many reductions of the loss scale just before mean that it was collapsing."""


def overflow_look(around: Surroundings) -> Look:
    """Whether something became infinite before anything became NaN."""
    start = around.episode.start
    curves = [curve for curve in (around.loss, around.norm) if curve is not None]
    first: dict[str, tuple[int, str]] = {}
    for curve in curves:
        for word, bad in (("inf", np.isinf(curve.values)), ("nan", np.isnan(curve.values))):
            near = np.flatnonzero(bad & (curve.steps <= around.episode.end))
            if len(near) and (word not in first or int(curve.steps[near[0]]) < first[word][0]):
                first[word] = int(curve.steps[near[0]]), curve.name
    if "inf" in first and ("nan" not in first or first["inf"][0] <= first["nan"][0]):
        step, name = first["inf"]
        said = f"Numbers overflowed: {name} was infinite at step {step}"
        if "nan" not in first:
            return is_it("overflow", f"{said}.", "nothing was NaN before it")
        later, where = first["nan"]
        return is_it("overflow", f"{said}, before anything was NaN.", f"NaN followed at step {later} in {where}")
    return is_not(f"overflow: nothing was infinite before the first NaN at step {start}")


def gradient_first_look(around: Surroundings) -> Look:
    """Whether the gradient norm was not finite while the loss still was."""
    evidence = around.episode.evidence
    first, after = evidence.get("gradient_step"), evidence.get("loss_step")
    if first is None or after is None:
        return is_not("the gradient: its norm was not seen to be non-finite before the loss was")
    return is_it(
        "gradient_non_finite",
        f"The gradient went non-finite first: {around.episode.metric} is no number at step {first:.0f}, while the loss "
        f"was still finite up to step {after:.0f}.",
        "the forward pass was sound: it broke on the way back",
    )


def loss_scale_look(around: Surroundings) -> Look:
    """Whether the loss scale was collapsing, as it does when gradients overflow in half precision again and again."""
    if around.scale is None:
        return not_seen("loss scale: not logged")
    before = around.before(around.scale)
    before = before[before > 0]
    if len(before) < 2:
        return is_not("loss scale: not in use") if len(before) == 0 else not_seen("loss scale: one value before it")
    cuts = int((np.diff(before) < 0).sum())
    grown = bool((np.diff(before) > 0).any())
    if cuts >= HALVINGS and not grown:
        return is_it(
            "fp16_scale",
            f"The loss scale was cut {cuts} times without growing, from {shown(float(before[0]))} to "
            f"{shown(float(before[-1]))}: gradients overflowed in half precision again and again.",
            f"loss scale {shown(float(before[-1]))} at the last step before",
        )
    return is_not(f"loss scale: {shown(float(before[-1]))}, cut {cuts} times in the {len(before)} points before")
