"""A loss scaler that begins low and grows slowly, for fp16 trainings that overflow."""

from __future__ import annotations

import torch
from torch.amp import GradScaler

from mlflow_stability.vocabulary.argument import with_known_names

INIT_SCALE = 2.0**10
"""The first scale; torch begins with 2**16, and skips the first steps of many models."""
GROWTH_FACTOR = 1.5
"""By which the scale grows; torch doubles it."""
GROWTH_INTERVAL = 200
"""After so many steps in a row without an overflow the scale grows; torch waits for 2000."""


@with_known_names
def conservative_grad_scaler(
    device: str | None = None,
    *,
    init_scale: float = INIT_SCALE,
    growth_factor: float = GROWTH_FACTOR,
    backoff_factor: float = 0.5,
    growth_interval: int = GROWTH_INTERVAL,
    enabled: bool = True,
) -> GradScaler:
    """Make a `torch.amp.GradScaler` that overflows seldom: it begins at 2¹⁰, not 2¹⁶, and grows by half, not double.

    Args:
        device: Where the loss will be; the accelerator of this machine if not given, else the CPU.
        init_scale: The first scale.
        growth_factor: By how much it grows.
        backoff_factor: By how much it shrinks after an overflow.
        growth_interval: After how many steps without an overflow it grows: sooner than torch's 2000, by less.
        enabled: Whether it does anything.
    """
    if device is None:
        device = torch.accelerator.current_accelerator().type if torch.accelerator.is_available() else "cpu"  # type: ignore[union-attr]
    return GradScaler(
        device,
        init_scale=init_scale,
        growth_factor=growth_factor,
        backoff_factor=backoff_factor,
        growth_interval=growth_interval,
        enabled=enabled,
    )
