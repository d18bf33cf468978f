"""Opens and closes measurements inside a forward pass."""

from __future__ import annotations

from mlflow_stability.probes.forward.compiled_models import compiled
from mlflow_stability.probes.forward.forward_scheduler import ForwardScheduler, unseen_parts
from mlflow_stability.probes.forward.forward_watch import ForwardObserver, ForwardWatch

__all__ = [
    "ForwardObserver",
    "ForwardScheduler",
    "ForwardWatch",
    "compiled",
    "unseen_parts",
]
