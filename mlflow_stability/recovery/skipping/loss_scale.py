"""Loss scales of fp16 training: lowered after skipped steps, limited, and a scaler that starts low and grows slowly."""

from __future__ import annotations

from typing import Any

import torch
from torch.amp import GradScaler

from mlflow_stability.vocabulary.argument import check_arguments

INIT_SCALE = 2.0**10  # the first scale; torch starts with 2**16, and skips the first steps of many models
GROWTH_FACTOR = 1.5  # growth factor of the scale; torch doubles it
GROWTH_INTERVAL = 200  # steps without an overflow after which the scale grows; torch waits for 2000


@check_arguments
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

    Returns:
        A loss scaler, used as torch's own.

    Raises:
        SettingsError: An unknown argument.

    Example:

        >>> conservative_grad_scaler("cpu").get_scale()
        1024.0
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


def cut_loss_scale(scaler: Any, factor: float, smallest: float) -> None:
    """Lower the scale of a loss scaler on its device, without waiting; never raise it.

    Call it between the end of a step and the next `scale`: in between, gradients carry the old one.
    """
    scale, tracker = getattr(scaler, "_scale", None), getattr(scaler, "_growth_tracker", None)
    if scale is None:
        return
    scale.copy_((scale * factor).clamp(min=smallest).minimum(scale))
    if tracker is not None:
        tracker.zero_()


def cap_loss_scale(scaler: Any, largest: float) -> None:
    """Keep the scale of a loss scaler at or below a limit, on its device, without waiting.

    Where its next growth would exceed the limit, the growth counter restarts. Call it as `cut_loss_scale`.
    """
    scale, tracker = getattr(scaler, "_scale", None), getattr(scaler, "_growth_tracker", None)
    if scale is None or tracker is None:
        return
    growth = scaler.get_growth_factor()
    if scaler.get_growth_interval() == 1:  # it grows at each step, right after this
        scale.clamp_(max=largest / growth)
        return
    scale.clamp_(max=largest)
    tracker.mul_((scale * growth <= largest).to(tracker.dtype))


def calm_loss_scaler(scaler: Any) -> None:
    """Make a loss scaler grow as slowly as a conservative one, and fall at least by half."""
    scaler.set_growth_interval(max(scaler.get_growth_interval(), GROWTH_INTERVAL))
    scaler.set_growth_factor(min(scaler.get_growth_factor(), GROWTH_FACTOR))
    scaler.set_backoff_factor(min(scaler.get_backoff_factor(), 0.5))
