"""What a probe is shown at a gate, and right after a step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor
from torch.optim import Optimizer

from mlflow_stability.probes.layers import Layers


@dataclass(frozen=True, slots=True)
class GateView:
    """One optimizer of a cycle."""

    optimizer: Optimizer
    step: int
    layers: Layers
    """Which parameter belongs to which module."""
    unscale: Tensor | None = None
    """By what gradients must be divided that a loss scaler has left scaled; None: they are as they are."""
    skipped: bool = False
    """After a step: it is known not to have been taken."""
    place: str = ""
    """Where signals of the whole model belong: nothing is said unless several trainings run side by side."""
    limits: Mapping[str, float] = field(default_factory=dict)
    """With which limits the script has clipped these gradients: ``max_norm``, ``clip_value``."""
