"""Number of non-finite values in each layer's gradients: where a broken step comes from.

Guarantees: counted only on demand, it costs nothing in normal steps; copies never take more than the budget.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer

from mlflow_stability.probes.block import Block
from mlflow_stability.probes.flat_copies import flat_copies, turns_of_copies
from mlflow_stability.probes.gradient_norm import dense_gradients
from mlflow_stability.probes.hooks import torch_api
from mlflow_stability.probes.parameters.layers import Layers
from mlflow_stability.probes.tensor_sums import nonzeros_of, on_device, scalars
from mlflow_stability.vocabulary.measured.signal_type import SignalType

SIGNALS = (
    SignalType(
        "grad_nonfinite_count",
        "gradients of a broken step that were not finite; in the record",
        "gradients",
        left_out="zero",
    ),
)

QUANTITIES = ("grad_nonfinite_count",)


class NonfiniteCount:
    def __init__(self, budget_bytes: int | None = None) -> None:
        self.budget_bytes = budget_bytes  # of copies; None: `copy_budget`

    def count(self, optimizer: Optimizer, layers: Layers, step: int) -> Block | None:
        """Return the counts of all layers, zeros included; None if nothing can be measured."""
        held = layers.held(optimizer, step)
        gradients, _ = dense_gradients(held.parameters(optimizer))
        columns = [column for column, gradient in enumerate(gradients) if gradient is not None]
        counts = _counts([gradient for gradient in gradients if gradient is not None], self.budget_bytes)
        if counts is None:
            return None
        layout = layers.layout([held])
        with torch.no_grad():
            where = on_device([columns[piece] for piece in counts[1]], counts[0].device, torch.long)
            row = counts[0].new_zeros(1, len(held.names)).index_add_(1, where, counts[0].unsqueeze(0))
            return layout.block(QUANTITIES, layout.sums(row))


# For each piece its count, and of which gradient it is.
def _counts(gradients: Sequence[Tensor], budget_bytes: int | None) -> tuple[Tensor, list[int]] | None:
    turns = turns_of_copies(gradients, budget_bytes) if gradients else None
    if turns is None:
        return None
    with torch.no_grad():
        rows = [_counts_of([piece.of(gradients) for piece in pieces]) for pieces in turns]
        rows = [row.to(rows[0].device, non_blocking=True) for row in rows]
    return torch.cat(rows), [piece.column for pieces in turns for piece in pieces]


# A function of its own, so that the copies of one turn are gone before those of the next are made.
def _counts_of(pieces: Sequence[Tensor]) -> Tensor:
    copies = flat_copies(pieces)
    torch_api.foreach_mul_(copies, 0.0)  # what is finite becomes 0, all else NaN, which is no zero
    counts = scalars(copies, nonzeros_of)
    return torch.zeros(0, dtype=torch.float32) if counts is None else counts
