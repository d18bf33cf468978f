"""The two ways to judge spikes, explosions and divergences."""

from __future__ import annotations

ROBUST, CLASSIC = "robust", "classic"
JUDGING_RULES = (ROBUST, CLASSIC)
"""``robust``: against medians and the noise of the signal itself. ``classic``: against the plain mean and standard
deviation of the last 100 values, as in Shewhart's charts."""
DETECTORS_TAKEN = "names such as 'loss_spike' or detectors such as LossSpike() of mlflow_stability.kinds"
"""What ``detectors=`` takes, in every function that has it."""
