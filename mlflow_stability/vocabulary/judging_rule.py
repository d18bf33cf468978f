"""The two ways to judge spikes, explosions and divergences."""

from __future__ import annotations

ROBUST, CLASSIC = "robust", "classic"
JUDGING_RULES = (ROBUST, CLASSIC)
"""``robust``: against medians and the noise of the signal itself. ``classic``: against the plain mean and standard
deviation of the last 100 values, as in Shewhart's charts."""
