"""The operating points there are: how much evidence a finding needs, as a multiple of the usual."""

from __future__ import annotations

from collections.abc import Mapping

SENSITIVITIES = ("low", "normal", "high")
FACTORS: Mapping[str, float] = dict(zip(SENSITIVITIES, (1.5, 1.0, 0.7), strict=True))
"""Fitted on drawn curves, so that of healthy runs below 1 %, about 1 % and 3 to 5 % are flagged."""
MAX_SCORE = 64.0
"""The highest score: of what exceeds its threshold so many times or more, and of what is no matter of degree."""
