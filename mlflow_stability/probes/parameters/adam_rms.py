"""RMS of gradients over Adam's second moment, of the whole model and by layer.

In: ends of steps. Out: ``adam_rms``, the root of the mean of g² / max(v, ε²), as StableAdamW defines it
(https://arxiv.org/abs/2304.13013, section 3.5): about 1 or below is healthy. v is the second moment that the step
divided by: bias-corrected, and with ``amsgrad`` the largest so far. g is the gradient that the optimizer received,
without the weight decay that Adam (not AdamW) adds to it.

Guarantees: copies stay within the memory budget; optimizer state is read and never made; optimizers without a second
moment in torch's layout are skipped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.optim import Adam, Optimizer

from mlflow_stability.probes.block import Block
from mlflow_stability.probes.hooks import torch_api
from mlflow_stability.probes.parameters.layer_layout import whole_signals
from mlflow_stability.probes.parameters.layers import HeldLayers
from mlflow_stability.probes.parameters.per_optimizer import PartsByOptimizer
from mlflow_stability.probes.probe import PeriodicProbe, ProbeContext, ProbeFactory, StepView
from mlflow_stability.probes.tensors.device_numbers import on_device, widest
from mlflow_stability.probes.tensors.flat_copies import bytes_of_copy, copy_budget, flat_copies
from mlflow_stability.probes.tensors.gradient_norm import dense_gradients
from mlflow_stability.probes.tensors.memory_chunks import Piece, share_out
from mlflow_stability.probes.tensors.tensor_sums import squares
from mlflow_stability.vocabulary.measured import SignalType
from mlflow_stability.vocabulary.presets import PRESETS

SIGNALS = (
    SignalType(
        "adam_rms",
        "root mean square of gradient over its remembered size (Adam); every `layers_every_n_steps`",
        "optimizer",
        exported="llm_adam_rms",
        by_layer=True,
        of_steps_taken=True,
    ),
)

SMALLEST_EPSILON = 1e-30
"""Where an optimizer has none: a weight that never had a gradient is then 0 / 1e-30, and not 0 / 0."""


@dataclass(slots=True)
class SecondMoments:
    """The parameters of one optimizer that have a second moment; one entry for each in every list."""

    columns: list[int] = field(default_factory=list)
    """Which of the parameters that are measured."""
    gradients: list[Tensor] = field(default_factory=list)
    moments: list[Tensor] = field(default_factory=list)
    corrections: list[Tensor] = field(default_factory=list)
    """What the root of the second moment is multiplied by: 1 / sqrt(1 - beta2^t)."""
    epsilons: list[float] = field(default_factory=list)


def second_moments(optimizer: Optimizer, held: HeldLayers) -> SecondMoments | None:
    """The second moments of an optimizer; None where it has none."""
    found = SecondMoments()
    steps: list[Any] = []
    decays: list[float] = []
    parameters = held.parameters(optimizer)
    gradients, _ = dense_gradients(parameters)
    for column, (parameter, gradient) in enumerate(zip(parameters, gradients, strict=True)):
        state = optimizer.state.get(parameter)
        group = optimizer.param_groups[held.groups[column]]
        moment = None if gradient is None or not isinstance(state, dict) else _moment(state, group)
        if gradient is None or moment is None or not isinstance(state, dict) or moment.device != gradient.device:
            continue  # what was moved to the host is left there
        if moment.shape != gradient.shape:
            continue  # it belongs to a projection of the gradient, which only the optimizer knows
        step, decay, epsilon = state.get("step", group.get("step")), _decay(group), group.get("eps")
        if step is None or decay is None or not isinstance(epsilon, float | int):
            continue
        found.columns.append(column)
        found.gradients.append(gradient)
        found.moments.append(moment)
        found.epsilons.append(max(float(epsilon), SMALLEST_EPSILON))
        steps.append(step)
        decays.append(decay)
    if not found.columns:
        return None
    with torch.no_grad():
        device = found.moments[0].device
        decay_row = on_device(decays, device, widest(device))
        found.corrections = list((1.0 - decay_row.pow(_row(steps, decay_row))).rsqrt_().unbind())
    return found


def _moment(state: Mapping[str, Any], group: Mapping[str, Any]) -> Tensor | None:
    moment = state.get("max_exp_avg_sq" if group.get("amsgrad") else "exp_avg_sq")
    plain = type(moment) is Tensor and moment.layout is torch.strided and moment.is_floating_point()
    return moment if plain else None


def _decay(group: Mapping[str, Any]) -> float | None:
    betas = group.get("betas")
    usual = isinstance(betas, tuple | list) and len(betas) == 2 and isinstance(betas[1], float)
    return betas[1] if usual and betas is not None else None


def _row(steps: list[Any], like: Tensor) -> Tensor:
    """How many steps were taken, for each parameter; torch keeps them as tensors, on the host or on the device."""
    if not any(isinstance(each, Tensor) for each in steps):
        return on_device(steps, like.device, like.dtype)
    row = [
        each.reshape(()) if isinstance(each, Tensor) else torch.tensor(float(each), dtype=torch.float32)
        for each in steps
    ]
    if len({each.device for each in row}) > 1:
        row = [each.to(like.device, non_blocking=True) for each in row]
    return torch.stack(row).to(like, non_blocking=True)


QUANTITIES = tuple(each.quantity for each in SIGNALS)


class AdamRms(PeriodicProbe):
    """The gradient beside the second moment."""

    part = "AdamW RMS"

    def __init__(self, every: int = 100, layers_every: int = 100, budget_bytes: int | None = None) -> None:
        super().__init__(every, layers_every)
        self.every = every
        """Every how many steps the whole model is measured, ..."""
        self.layers_every = layers_every
        """... and every how many steps its layers."""
        self.budget_bytes = budget_bytes
        """How many bytes copies may take; None: one hundredth of the device's memory, at most 256 MiB."""
        self._parts = PartsByOptimizer()

    def after_step(self, view: StepView) -> None:
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
        """The capture was interrupted half-way: let go of what was measured in it."""
        self._parts.drop()

    def blocks(self, step: int) -> Sequence[Block]:
        """The RMS of the capture."""
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
        chunks = share_out([tuple(each.shape) for each in found.moments], sizes, range(len(sizes)), budget)
        if chunks is None:
            return None
        sums: list[Tensor] = []
        for chunk in chunks:
            row = _squares_of_chunk(found, chunk)
            if row is None:
                return None
            sums.append(row)
        pieces = [piece.column for chunk in chunks for piece in chunk]
        whole = torch.cat([each.to(device, non_blocking=True) for each in sums])
        if pieces == list(range(len(sizes))):
            return whole
        return whole.new_zeros(len(sizes)).index_add_(0, on_device(pieces, whole.device, torch.long), whole)


def _squares_of_chunk(found: SecondMoments, chunk: Sequence[Piece]) -> Tensor | None:
    copies = flat_copies([piece.of(found.moments) for piece in chunk])
    torch_api.foreach_sqrt_(copies)
    corrections = [found.corrections[piece.column] for piece in chunk]
    torch_api.foreach_mul_(
        copies, [each.to(copy.device, non_blocking=True) for each, copy in zip(corrections, copies, strict=True)]
    )
    torch_api.foreach_clamp_min_(copies, [found.epsilons[piece.column] for piece in chunk])
    torch_api.foreach_reciprocal_(copies)
    torch_api.foreach_mul_(copies, [piece.of(found.gradients) for piece in chunk])
    return squares(copies)


def _puts_back_unscaled(optimizer: Optimizer) -> bool:
    """Whether the gradients after the step are unscaled already: torch's fused kernels divide them in place."""
    return isinstance(optimizer, Adam) and any(_fused(group) for group in optimizer.param_groups)


def _fused(group: dict[str, Any]) -> bool:
    return bool(group.get("fused"))


def _probe(context: ProbeContext) -> AdamRms:
    preset = context.settings.preset
    every_step = preset is not None and PRESETS[preset].adam_rms_every_step
    return AdamRms(1 if every_step else context.layers, context.layers, context.budget)


PROBES: tuple[ProbeFactory, ...] = (_probe,)
