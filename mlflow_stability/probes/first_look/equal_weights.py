"""Measures whether weights differ at all before the first step."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.optim import Optimizer

from mlflow_stability.probes.block import Block
from mlflow_stability.probes.hooks.untracked_ops import is_measurable, untracked
from mlflow_stability.probes.tensors.gradient_norm import parameters_of
from mlflow_stability.vocabulary.measured import Signal, SignalType

SIGNALS = (
    SignalType(
        "weights_equal", "share of weight matrices whose values are all equal, of the first ones; step 1", "optimizer"
    ),
)
EQUAL = (Signal("weights_equal", ""),)
MAX_MATRICES = 8
"""Number of weight matrices that are looked at."""
FEWEST = 2
"""Minimum number of matrices."""


def equal_weights(optimizer: Optimizer) -> list[Block]:
    """The share of weight matrices with one value only; nothing for fewer than two."""
    matrices = [tensor for tensor in parameters_of(optimizer) if _is_matrix(tensor)][:MAX_MATRICES]
    if len(matrices) < FEWEST or len({tensor.device for tensor in matrices}) > 1:
        return []
    with untracked():
        ends = [torch.stack(torch.aminmax(tensor)).float() for tensor in matrices]
        low, high = torch.stack(ends).unbind(1)
        return [Block(EQUAL, (low == high).float().mean(0, keepdim=True))]


def _is_matrix(tensor: Tensor) -> bool:
    """Whether it is the weight of several units with several inputs."""
    return is_measurable(tensor) and tensor.is_floating_point() and tensor.dim() > 1 and min(tensor.shape[:2]) > 1
