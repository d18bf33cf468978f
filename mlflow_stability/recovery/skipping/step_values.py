"""What is known of a step before it is taken, on the host.

In: an optimizer before its step, and what hooks saw of its capture. Out: loss, gradient norm before clipping, learning
rate, loss scale. Guarantees: only what is asked for is waited for; values are those that are recorded afterwards.
"""

from __future__ import annotations

from collections.abc import Collection
from math import fsum, isfinite

from torch import Tensor
from torch.optim import Optimizer

from mlflow_stability.probes.step import StepCapture
from mlflow_stability.probes.step.reading import norm_before_clipping


def values_before_step(
    optimizer: Optimizer, capture: StepCapture, norm: Tensor | None, wanted: Collection[str]
) -> dict[str, float]:
    """The values by quantity; `norm`: of the gradients that this optimizer is given."""
    found: dict[str, float] = {}
    if "loss" in wanted and capture.sure_losses:
        losses = [float(each) for each in capture.sure_losses]
        found["loss"] = fsum(losses) if all(map(isfinite, losses)) else sum(losses)
    if "grad_norm" in wanted and norm is not None:
        numbers: list[float] = []
        for clip in capture.clips:
            numbers += (float(clip.norm), 1.0 if clip.scale is None else float(clip.scale))
        before = norm_before_clipping(capture, numbers) if numbers else None
        found["grad_norm"] = float(norm) if before is None else before
    if "learning_rate" in wanted:
        found["learning_rate"] = max(float(group.get("lr") or 0.0) for group in optimizer.param_groups)
    if "loss_scale" in wanted and capture.loss_scale is not None:
        found["loss_scale"] = float(capture.loss_scale)
    return found
