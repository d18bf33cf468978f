"""What the recorded gradient norm stands for, as journal and tag name it."""

from __future__ import annotations

UNCLIPPED = "no clipping seen"
"""No gradients were clipped before any optimizer step."""
