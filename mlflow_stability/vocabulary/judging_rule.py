"""What ``detectors=`` takes, in every function that has it."""

from __future__ import annotations

CLASSIC = "classic"
"""The rule of detectors that judge against the plain mean and standard deviation of the last 100 values, as in
Shewhart's charts; the others judge against medians and the noise of the signal itself."""
DEFAULT = "default"
"""In a list of detectors, all that look unless others are asked for."""
DETECTORS_TAKEN = "names such as 'loss_spike', 'default', or detectors such as LossSpike() of mlflow_stability.kinds"
