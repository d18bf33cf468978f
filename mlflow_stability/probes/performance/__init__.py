"""Time, throughput, FLOPs, memory and progress."""

from __future__ import annotations

from mlflow_stability.probes.performance.batch_shape import batch_shape, batch_words, plain_batch
from mlflow_stability.probes.performance.flop_count import FlopTotals

# `training_pace` is imported from its own module: it uses `forward`, which uses this sub-package.
__all__ = [
    "FlopTotals",
    "batch_shape",
    "batch_words",
    "plain_batch",
]
