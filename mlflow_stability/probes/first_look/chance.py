"""Reads from the graph of a loss what a model would lose that gives each class the same probability."""

from __future__ import annotations

import math

from torch import Tensor

from mlflow_stability.probes.first_look.loss_graph import LOSSES, MEAN, node_name


def chance_loss(loss: Tensor) -> float | None:
    """The logarithm of the number of classes; None where the loss is anything but one mean cross entropy."""
    node = loss.grad_fn
    if not node_name(node).startswith("NllLoss") or node_name(node) not in LOSSES:
        return None
    source = node.next_functions[0][0] if node is not None else None
    if node_name(source) != "LogSoftmax" or getattr(node, "_saved_reduction", None) != MEAN:
        return None
    metadata = getattr(source, "_input_metadata", None)
    shape = tuple(metadata[0].shape) if metadata else ()
    classes = shape[1] if len(shape) > 1 else 0
    return math.log(classes) if classes > 1 else None
