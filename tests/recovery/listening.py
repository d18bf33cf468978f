"""A model whose forward passes are listened to, as they are while it trains."""

from __future__ import annotations

from probes.looked_into import unguarded
from torch import nn
from torch.optim import SGD

from mlflow_stability.probes.forward.forward_passes import ForwardWatch
from mlflow_stability.recovery.nan_origin.batch_capture import BatchCapture


def listening(model: nn.Module, capture: BatchCapture | None = None) -> tuple[BatchCapture, ForwardWatch]:
    """What is remembered of its passes, and the watch that shows them, which can be taken off."""
    capture = capture or BatchCapture()
    watch = ForwardWatch(unguarded, [capture])
    watch.before_step(SGD(model.parameters(), lr=0.1))
    return capture, watch
