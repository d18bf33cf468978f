"""Compares output layers with embeddings of the same shape before the first step."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import Module

from mlflow_stability.probes.block import Block
from mlflow_stability.probes.hooks.untracked_ops import is_measurable, untracked
from mlflow_stability.probes.module_names import names_of_modules
from mlflow_stability.vocabulary.measured import Signal, SignalType

SIGNALS = (
    SignalType(
        "copied_embedding",
        "1 where a linear layer has the values of an embedding of the same shape, in a tensor of its own; step 1",
        "optimizer",
    ),
)
MAX_PAIRS = 4
MAX_ROWS = 64  # a copy of a large table would take its memory again


def copied_embeddings(models: Sequence[Module]) -> list[Block]:
    """Return a value for each trained linear layer with the shape of an embedding in a tensor of its own."""
    names = names_of_modules(models)
    modules = [module for model in models for module in Module.modules(model)]
    tables = [module.weight for module in modules if isinstance(module, nn.Embedding) and _is_trained(module.weight)]
    held = {id(table) for table in tables}
    pairs = [
        (names[id(module)], module.weight, table)
        for module in modules
        if isinstance(module, nn.Linear) and _is_trained(module.weight) and id(module.weight) not in held
        for table in tables
        if table.shape == module.weight.shape and table.device == module.weight.device
    ][:MAX_PAIRS]
    blocks = []
    with untracked():
        for name, weight, table in pairs:
            rows, values = weight[:MAX_ROWS], table[:MAX_ROWS]
            # Values that all are one number may be equal by chance.
            same = (rows == values).all() & (rows != rows[0, 0]).any()
            blocks.append(Block((Signal("copied_embedding", name),), same.to(torch.float32).reshape(1)))
    return blocks


def _is_trained(weight: Tensor) -> bool:
    return is_measurable(weight) and weight.requires_grad and weight.is_floating_point() and weight.numel() > 0
