"""One step: the actions before it, and its values once they are read."""

from __future__ import annotations

import math
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from math import isfinite

from torch import Tensor

from mlflow_stability.probes.step.reading import ProbeReading
from mlflow_stability.recovery.skipping.skip_count import SkippedBy
from mlflow_stability.recovery.stop_conditions import Stop
from mlflow_stability.vocabulary.measured.signal import Signal, StepReading, shared_layout
from mlflow_stability.vocabulary.measured.signal_type import SignalType
from mlflow_stability.vocabulary.result import Finding


@dataclass(slots=True, eq=False)
class StepRecord:
    """One capture and the optimizer steps that use its gradients."""

    step: int
    place: str = ""
    skipped_by: SkippedBy | None = None
    """None: taken, as far as the host knew when it was over."""
    asked_for: bool = False
    """Not broken: the script asked to skip it, or its gradients were those of replaced weights."""
    buffers_lost: bool = False
    """Skipped, but buffers could not be restored."""
    has_scaler: bool = False
    is_ended: bool = False
    """The capture is over, and its reading was requested."""
    flag: Tensor | None = None
    """The guard's flag that the capture has already."""
    stop: Stop | None = None
    """Ends the training before this step."""
    stopped_together: bool = False
    """All ranks have agreed to end before this step."""
    batch_number: int = -1
    """Identifies its batch."""
    rates: dict[int, tuple[float, ...]] = field(default_factory=dict)
    """Learning rates that each optimizer really used."""
    eased: bool = False
    """Whether `rates` may differ from the script's own."""

    findings: tuple[Finding, ...] = ()
    loss: float = math.nan
    norm: float = math.nan
    """Gradient norm before clipping."""
    given: float = math.nan
    """Gradient norm as the optimizers got it."""
    loss_scale: float | None = None
    was_skipped_by: SkippedBy | None = None
    """`skipped_by`, or what only the device knew; unlike `skipped_by` not known on all ranks at once."""
    broken_taken: bool = False
    """Taken with non-finite loss or gradients."""
    skips_in_a_row: int = 0

    @property
    def is_broken(self) -> bool:
        """Skipped by the guard, or taken broken; skips of a loss scaler are part of its search."""
        return self.was_skipped_by == "guard" or self.broken_taken

    def read(self, reading: StepReading, skipped_before: MutableMapping[str, float]) -> None:
        """Fill in the values; updates `skipped_before`, the skipped steps by place."""
        values: dict[str, float] = {}
        for signal, value in zip(reading.signals, reading.values, strict=True):
            if (signal.place == self.place or signal.quantity == "loss_scale") and signal.quantity not in values:
                values[signal.quantity] = value
        self.step = reading.step
        self.loss, self.norm = values.get("loss", math.nan), values.get("grad_norm", math.nan)
        self.given, self.loss_scale = values.get("grad_norm_clipped", self.norm), values.get("loss_scale")
        self.was_skipped_by = self.skipped_by
        count = values.get("skipped_steps", 0.0)
        if count > skipped_before.get(self.place, 0.0) and not self.skipped_by and not self.asked_for:
            # Only the device knew. Where a loss scaler is at work, its flag and ours are one.
            self.was_skipped_by = "scaler" if self.has_scaler else "guard"
        skipped_before[self.place] = count
        finite = isfinite(values.get("loss", 0.0)) and isfinite(values.get("grad_norm", 0.0))
        self.broken_taken = not (finite or self.was_skipped_by or self.asked_for)


SIGNALS = (
    SignalType(
        "learning_rate_used",
        "learning rate that the step was taken with, of the first parameter group; only while it is reduced after a "
        "rollback or a spike",
        "optimizer",
        interval="every step",
    ),
)


def with_used_rate(reading: ProbeReading, record: StepRecord) -> ProbeReading:
    """Add the used rate of the first group beside the rate set by the script."""
    named = zip(reading.signals, reading.values, strict=True)
    script = next(((signal.place, rate) for signal, rate in named if signal.quantity == "learning_rate"), None)
    used = next((rates[0] for rates in record.rates.values() if rates), math.nan)
    if script is None or not math.isfinite(used) or math.isclose(used, script[1], rel_tol=1e-6):
        return reading
    signals = shared_layout((*reading.signals, Signal(SIGNALS[0].quantity, script[0])))
    return reading._replace(signals=signals, values=(*reading.values, used))
