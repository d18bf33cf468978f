"""The part of a judgement that NaN and infinity share: when one appears, where it came first, when it is over.

A run of bad values is one finding, not one for each step and each quantity: it begins with the first and is over when
every quantity is finite again. Gradients that a loss scaler found to be infinite and threw away are its normal search
for a scale and are not counted here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from mlflow_stability.detectors.detector import Point

SKIPPED = "skipped_steps"
LOSS = "loss"


@dataclass(frozen=True, slots=True)
class NonFinite:
    """What has been seen so far."""

    ill: frozenset[str] = frozenset()
    """The quantities that are bad at the moment."""
    skips: float = 0.0
    excused_step: int = -1
    """The step that the loss scaler threw away."""


def watch(state: NonFinite, point: Point, *, is_bad: bool) -> tuple[NonFinite, bool]:
    """The new state, and whether a finding begins here."""
    quantity = point.quantity
    if quantity == SKIPPED:
        if point.value > state.skips:
            return replace(state, skips=point.value, excused_step=point.step), False
        return state, False
    if is_bad:
        if quantity in state.ill or (quantity != LOSS and point.step == state.excused_step):
            return state, False
        return replace(state, ill=state.ill | {quantity}), not state.ill
    if point.finite and quantity in state.ill:
        return replace(state, ill=state.ill - {quantity}), False
    return state, False


def before(point: Point) -> str:
    """The half sentence about the last good value."""
    if point.before is None:
        return "no finite value came before it"
    return f"the last finite value before it was {point.before:.4g}"
