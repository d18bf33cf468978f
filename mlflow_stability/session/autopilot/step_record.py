"""What is known of one step: what was done before it, and its numbers once they were read."""

from __future__ import annotations

import math
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from math import isfinite

from torch import Tensor

from mlflow_stability.recovery.skipping import SkippedBy
from mlflow_stability.recovery.stop_conditions import Stop
from mlflow_stability.vocabulary.measured import StepReading
from mlflow_stability.vocabulary.result import Finding


@dataclass(slots=True, eq=False)
class StepRecord:
    """One capture and the optimizer steps that use its gradients; what was read of it is filled in later."""

    step: int
    place: str = ""
    skipped_by: SkippedBy | None = None
    """None: it was taken, as far as the host knew when it was over."""
    asked_for: bool = False
    """It was not broken: the script asked to skip it, or its gradients were those of weights that are no more."""
    buffers_lost: bool = False
    """It was skipped, and buffers that its forward pass wrote could not be put back."""
    has_scaler: bool = False
    is_ended: bool = False
    """The capture is over, and its reading was asked for."""
    flag: Tensor | None = None
    """The flag of the guard that the capture carries already."""
    stop: Stop | None = None
    """What ends the training before these steps are taken."""
    stopped_together: bool = False
    """All ranks have agreed to end it before these steps are taken."""
    batch_number: int = -1
    """By which its batch is known, where batches are held."""
    rates: dict[int, tuple[float, ...]] = field(default_factory=dict)
    """At which learning rates each optimizer really stepped."""
    eased: bool = False
    """Whether these may be other ones than the script has set."""

    findings: tuple[Finding, ...] = ()
    loss: float = math.nan
    norm: float = math.nan
    """Of the gradients, before clipping."""
    given: float = math.nan
    """Of those that the optimizers were given."""
    loss_scale: float | None = None
    was_skipped_by: SkippedBy | None = None
    """As `skipped_by`, with what only the device knew: of all ranks, `skipped_by` alone is the same at one moment."""
    broken_taken: bool = False
    """A loss or gradients that are not finite, and nobody skipped the step."""
    skips_in_a_row: int = 0

    @property
    def is_broken(self) -> bool:
        """Whether its loss or gradients were not finite, or absurd; a loss scaler's skip is part of its search."""
        return self.was_skipped_by == "guard" or self.broken_taken

    def read(self, reading: StepReading, skipped_before: MutableMapping[str, float]) -> None:
        """Fill in the numbers; `skipped_before` counts the skipped steps by place, and is brought up to date."""
        found: dict[str, float] = {}
        for signal, value in zip(reading.signals, reading.values, strict=True):
            if (signal.place == self.place or signal.quantity == "loss_scale") and signal.quantity not in found:
                found[signal.quantity] = value
        self.step = reading.step
        self.loss, self.norm = found.get("loss", math.nan), found.get("grad_norm", math.nan)
        self.given, self.loss_scale = found.get("grad_norm_clipped", self.norm), found.get("loss_scale")
        self.was_skipped_by = self.skipped_by
        count = found.get("skipped_steps", 0.0)
        if count > skipped_before.get(self.place, 0.0) and not self.skipped_by and not self.asked_for:
            # Only the device knew. Where a loss scaler is at work, its flag and ours are one.
            self.was_skipped_by = "scaler" if self.has_scaler else "guard"
        skipped_before[self.place] = count
        finite = isfinite(found.get("loss", 0.0)) and isfinite(found.get("grad_norm", 0.0))
        self.broken_taken = not (finite or self.was_skipped_by or self.asked_for)
