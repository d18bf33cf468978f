"""Counts the values that are not finite in each layer's gradients: where a broken step comes from.

In: an optimizer whose gradients are known to hold some. Out: ``grad_nonfinite_count`` of every layer. Guarantees:
asked for only then, it costs nothing in health; copies never take more than the budget.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer

from mlflow_stability.probes.block import Block
from mlflow_stability.probes.hooks import torch_api
from mlflow_stability.probes.parameters.layers import Layers
from mlflow_stability.probes.tensors.device_numbers import on_device
from mlflow_stability.probes.tensors.flat_copies import bytes_of_copy, copy_budget, flat_copies
from mlflow_stability.probes.tensors.gradient_norm import dense_gradients
from mlflow_stability.probes.tensors.memory_chunks import share_out
from mlflow_stability.probes.tensors.tensor_sums import nonzeros_of, scalars
from mlflow_stability.vocabulary.measured import SignalType

SIGNALS = (
    SignalType(
        "grad_nonfinite_count",
        "gradients of a broken step that were not finite; in the record",
        "gradients",
        left_out="zero",
    ),
)

QUANTITIES = tuple(each.quantity for each in SIGNALS)


class NonfiniteCount:
    """The count, on demand."""

    def __init__(self, budget_bytes: int | None = None) -> None:
        self.budget_bytes = budget_bytes
        """How many bytes copies may take; None: one hundredth of the device's memory, at most 256 MiB."""

    def count(self, optimizer: Optimizer, layers: Layers, step: int) -> Block | None:
        """The counts of all layers, those without any among them; None where nothing can be measured."""
        held = layers.held(optimizer, step)
        gradients, _ = dense_gradients(held.parameters(optimizer))
        columns = [column for column, each in enumerate(gradients) if each is not None]
        counts = _counts([each for each in gradients if each is not None], self.budget_bytes)
        if counts is None:
            return None
        layout = layers.layout([held])
        with torch.no_grad():
            where = on_device([columns[piece] for piece in counts[1]], counts[0].device, torch.long)
            row = counts[0].new_zeros(1, len(held.names)).index_add_(1, where, counts[0].unsqueeze(0))
            return layout.block(QUANTITIES, layout.sums(row))


def _counts(gradients: Sequence[Tensor], budget_bytes: int | None) -> tuple[Tensor, list[int]] | None:
    """For each piece its count, and of which gradient it is."""
    if not gradients:
        return None
    budget = copy_budget(gradients[0].device) if budget_bytes is None else budget_bytes
    sizes = [bytes_of_copy(each) for each in gradients]
    chunks = share_out([tuple(each.shape) for each in gradients], sizes, range(len(sizes)), budget)
    if chunks is None:
        return None
    with torch.no_grad():
        rows = [_counts_of([piece.of(gradients) for piece in chunk]) for chunk in chunks]
        rows = [each.to(rows[0].device, non_blocking=True) for each in rows]
    return torch.cat(rows), [piece.column for chunk in chunks for piece in chunk]


def _counts_of(pieces: Sequence[Tensor]) -> Tensor:
    """A function of its own, so that the copies of one turn are gone before those of the next are made."""
    copies = flat_copies(pieces)
    torch_api.foreach_mul_(copies, 0.0)  # what is finite becomes 0, all else NaN, which is no zero
    counts = scalars(copies, nonzeros_of)
    return torch.zeros(0, dtype=torch.float32) if counts is None else counts
