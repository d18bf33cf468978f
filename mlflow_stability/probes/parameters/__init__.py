"""Statistics of weights, gradients and optimizer state, of the whole model and by layer."""

from __future__ import annotations

from mlflow_stability.probes.parameters.nonfinite_count import NonfiniteCount

# `layer_statistics` is imported from its own module: it is a probe, and every probe uses this sub-package.
__all__ = [
    "NonfiniteCount",
]
