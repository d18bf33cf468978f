"""The part of a judgement that NaN and infinity share: when one appears, where it came first, when it is over.

A run of bad values is one finding, not one for each step and each quantity: it begins with the first and is over when
every quantity is finite again. Gradients that a loss scaler found to be infinite and threw away are its normal search
for a scale and are not counted here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from mlflow_stability.detectors.detector import Point

SKIPPED = "skipped_steps"
LOSS = "loss"


@dataclass(frozen=True, slots=True)
class NonFinite:
    """What has been seen so far."""

    ill: frozenset[str] = frozenset()
    """The quantities that are bad at the moment."""
    last_finite: Mapping[str, float] = field(default_factory=dict)
    skips: float = 0.0
    excused_step: int = -1
    """The step that the loss scaler threw away."""


def watch(state: NonFinite, point: Point, *, is_bad: bool, is_finite: bool) -> tuple[NonFinite, bool]:
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
    if is_finite:
        return NonFinite(
            state.ill - {quantity}, {**state.last_finite, quantity: point.value}, state.skips, state.excused_step
        ), False
    return state, False


def before(state: NonFinite, quantity: str) -> str:
    """The half sentence about the last good value."""
    last = state.last_finite.get(quantity)
    return "no finite value came before it" if last is None else f"the last finite value before it was {last:.4g}"
