"""Picks out of a reading what the autopilot needs to know of a step."""

from __future__ import annotations

import math
from collections.abc import MutableMapping
from dataclasses import dataclass

from mlflow_stability.session.gatekeeper import CycleFacts
from mlflow_stability.vocabulary.observation import StepReading


@dataclass(frozen=True, slots=True)
class ReadStep:
    """The numbers of a step."""

    loss: float
    norm: float
    """Of the gradients, before clipping."""
    given: float
    """Of those that the optimizers were given."""
    loss_scale: float | None
    skipped_by: str
    """``guard``, ``scaler``, or empty."""
    broken_taken: bool
    """A loss or gradients that are not finite, and nobody skipped the step."""


def read_step(reading: StepReading, facts: CycleFacts, skipped_before: MutableMapping[str, float]) -> ReadStep:
    """The numbers of a step; `skipped_before` counts, by place, what was skipped so far, and is brought up to date."""
    found: dict[str, float] = {}
    for signal, value in zip(reading.signals, reading.values, strict=True):
        if signal.place == facts.place or signal.quantity == "loss_scale":
            found.setdefault(signal.quantity, value)
    loss, norm = found.get("loss", math.nan), found.get("grad_norm", math.nan)
    skipped_by = facts.skipped_by
    count = found.get("skipped_steps", 0.0)
    if count > skipped_before.get(facts.place, 0.0) and not skipped_by and not facts.asked_for:
        # Only the device knew. Where a loss scaler is at work, its flag and ours are one.
        skipped_by = "scaler" if facts.has_scaler else "guard"
    skipped_before[facts.place] = count
    measured = [found[each] for each in ("loss", "grad_norm") if each in found]
    broken = not all(map(math.isfinite, measured)) and not skipped_by and not facts.asked_for
    return ReadStep(loss, norm, found.get("grad_norm_clipped", norm), found.get("loss_scale"), skipped_by, broken)
