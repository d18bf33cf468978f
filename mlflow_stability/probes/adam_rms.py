"""Measures how far gradients outrun what Adam remembers of their size, of the whole model and by layer.

In: ends of steps. Out: ``adam_rms``, the root of the mean of g² / max(v, ε²), as StableAdamW defines it
(https://arxiv.org/abs/2304.13013, section 3.5): near 1 or below in health. v is the second moment that the step was
divided by: with its bias corrected, and with ``amsgrad`` the largest so far. Promised: copies never take more than
the budget; optimizers without a second moment are left alone.

The gradient is the one that the optimizer got; a weight decay that Adam, other than AdamW, adds to it is not in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Adam, Optimizer

from mlflow_stability.probes import torch_api
from mlflow_stability.probes.adam_moments import SecondMoments, second_moments
from mlflow_stability.probes.block import Block
from mlflow_stability.probes.cycle_parts import CycleParts
from mlflow_stability.probes.device_numbers import on_device
from mlflow_stability.probes.flat_copies import bytes_of_copy, copy_budget, flat_copies
from mlflow_stability.probes.gate_view import GateView
from mlflow_stability.probes.layer_layout import whole_signals
from mlflow_stability.probes.probe import next_multiple
from mlflow_stability.probes.tensor_sums import squares
from mlflow_stability.probes.turns import Piece, share_out

QUANTITIES = ("adam_rms",)


class AdamRms:
    """The gradient beside the second moment."""

    part = "AdamW RMS"

    def __init__(self, every: int = 100, layers_every: int = 100, budget_bytes: int | None = None) -> None:
        self.every = every
        """Every how many steps the whole model is measured, ..."""
        self.layers_every = layers_every
        """... and every how many steps its layers."""
        self.budget_bytes = budget_bytes
        """How many bytes copies may take; None: one hundredth of the device's memory, at most 256 MiB."""
        self._parts = CycleParts()

    def due(self, step: int) -> bool:
        """Whether this cycle is to be measured."""
        return step % self.every == 0 or step % self.layers_every == 0

    def next_due(self, step: int) -> int:
        """The next step that is due."""
        return next_multiple(step, self.every, self.layers_every)

    def at_gate(self, view: GateView) -> None:
        """The second moment is that of after the step."""

    def after_step(self, view: GateView) -> None:
        """Compare one optimizer's gradients with its second moments."""
        if view.skipped:
            return
        held = view.layers.held(view.optimizer, view.step)
        found = second_moments(view.optimizer, held)
        if found is None:
            return
        with torch.no_grad():
            sums = self._sums(found)
            if sums is None:
                return
            if view.unscale is not None and not _puts_back_unscaled(view.optimizer):
                sums = sums / view.unscale.to(sums, non_blocking=True).square()
            sizes = [each.numel() for each in found.moments]
            rows = torch.stack((sums, on_device(sizes, sums.device, sums.dtype)))
            if len(sizes) < len(held.names):
                columns = on_device(found.columns, sums.device, torch.long)
                rows = rows.new_zeros(2, len(held.names)).index_copy_(1, columns, rows)
            others = set(range(len(held.names))).difference(found.columns)
            self._parts.add(view, held, rows, tuple(others))

    def forget(self) -> None:
        """The cycle was interrupted half-way: let go of what was measured in it."""
        self._parts.drop()

    def blocks(self, step: int) -> Sequence[Block]:
        """The RMS of the cycle."""
        joined = self._parts.take()
        if joined is None:
            return ()
        blocks: list[Block] = []
        with torch.no_grad():
            if step % self.every == 0 and joined.complete:
                total, count = joined.rows.sum(1, keepdim=True)
                blocks.append(Block(whole_signals(QUANTITIES, joined.place), (total / count).sqrt_()))
            if step % self.layers_every == 0:
                total, count = joined.layout.sums(joined.rows)
                columns = set(range(len(joined.layout.of_parameter))) - joined.unknown
                only = joined.layout.touched_by(columns)
                blocks.append(joined.layout.block(QUANTITIES, (total / count).sqrt_().unsqueeze(0), only))
        return blocks

    def _sums(self, found: SecondMoments) -> Tensor | None:
        """For each parameter the sum of g² / max(v, ε²)."""
        device = found.moments[0].device
        budget = copy_budget(device) if self.budget_bytes is None else self.budget_bytes
        sizes = [bytes_of_copy(each) for each in found.moments]
        turns = share_out([tuple(each.shape) for each in found.moments], sizes, range(len(sizes)), budget)
        if turns is None:
            return None
        sums: list[Tensor] = []
        for turn in turns:
            row = _squares_of_turn(found, turn)
            if row is None:
                return None
            sums.append(row)
        pieces = [piece.column for turn in turns for piece in turn]
        whole = torch.cat([each.to(device, non_blocking=True) for each in sums])
        if pieces == list(range(len(sizes))):
            return whole
        return whole.new_zeros(len(sizes)).index_add_(0, on_device(pieces, whole.device, torch.long), whole)


def _squares_of_turn(found: SecondMoments, turn: Sequence[Piece]) -> Tensor | None:
    copies = flat_copies([piece.of(found.moments) for piece in turn])
    torch_api.foreach_sqrt_(copies)
    corrections = [found.corrections[piece.column] for piece in turn]
    torch_api.foreach_mul_(
        copies, [each.to(copy.device, non_blocking=True) for each, copy in zip(corrections, copies, strict=True)]
    )
    torch_api.foreach_clamp_min_(copies, [found.epsilons[piece.column] for piece in turn])
    torch_api.foreach_reciprocal_(copies)
    torch_api.foreach_mul_(copies, [piece.of(found.gradients) for piece in turn])
    return squares(copies)


def _puts_back_unscaled(optimizer: Optimizer) -> bool:
    """Whether the gradients after the step are unscaled already: torch's fused kernels divide them in place."""
    return isinstance(optimizer, Adam) and any(_fused(group) for group in optimizer.param_groups)


def _fused(group: dict[str, Any]) -> bool:
    return bool(group.get("fused"))
