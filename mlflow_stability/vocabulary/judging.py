"""Names and numbers that all judgements share: rules of detectors, sensitivities, scores."""

from __future__ import annotations

from collections.abc import Mapping

CLASSIC = "classic"
"""Rule of detectors that compare with the mean and standard deviation of the last 100 values, as in Shewhart's charts.
Other detectors compare with medians and the noise of the signal itself."""
DEFAULT = "default"  # in a list of detectors: all that run by default
DETECTORS_TAKEN = "names such as 'loss_spike', 'default', or detectors such as LossSpike() of mlflow_stability.kinds"
"""What ``detectors=`` accepts, in words."""
SENSITIVITIES = ("low", "normal", "high")
FACTORS: Mapping[str, float] = dict(zip(SENSITIVITIES, (1.5, 1.0, 0.7), strict=True))
"""Evidence that a finding needs, as a multiple of that at normal sensitivity. Fitted on simulated curves: of healthy
runs, below 1 %, about 1 % and 3 to 5 % are flagged."""
MAX_SCORE = 64.0  # highest score of a finding; also that of findings that have no degree
