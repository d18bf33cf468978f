"""RMS of gradients over Adam's second moment, of the whole model and by layer.

``adam_rms`` is the root of the mean of g² / max(v, ε²), as StableAdamW defines it (https://arxiv.org/abs/2304.13013,
section 3.5): about 1 or below is healthy. v is the second moment that the step divided by; g is the gradient that the
optimizer received, without a weight decay. Guarantees: copies stay within the memory budget; optimizer state is read
and never made; optimizers without a second moment in torch's layout are skipped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.optim import Adam, Optimizer

from mlflow_stability.probes.gradient_norm import dense_gradients
from mlflow_stability.probes.hooks import torch_api
from mlflow_stability.probes.parameters.layers import HeldLayers
from mlflow_stability.probes.parameters.per_optimizer import OptimizerProbe
from mlflow_stability.probes.probe import ProbeContext, ProbeFactory, StepView
from mlflow_stability.probes.step.readback import Block, signals_at
from mlflow_stability.probes.tensor_sums import Piece, flat_copies, on_device, squares, turns_of_copies, widest
from mlflow_stability.vocabulary.measured.signal_type import SignalType
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

SMALLEST_EPSILON = 1e-30  # where an optimizer has none, a weight without a gradient is 0 / 1e-30 and not 0 / 0


@dataclass(slots=True)
class SecondMoments:
    """The parameters of one optimizer that have a second moment; one entry for each in every list."""

    columns: list[int] = field(default_factory=list)  # indices of the measured parameters
    gradients: list[Tensor] = field(default_factory=list)
    moments: list[Tensor] = field(default_factory=list)
    corrections: list[Tensor] = field(default_factory=list)
    """Factors of the root of the second moment: 1 / sqrt(1 - beta2^t)."""
    epsilons: list[float] = field(default_factory=list)


def second_moments(optimizer: Optimizer, held: HeldLayers) -> SecondMoments | None:
    moments = SecondMoments()
    steps: list[Any] = []
    decays: list[float] = []
    parameters = held.parameters(optimizer)
    gradients, _ = dense_gradients(parameters)
    for column, (parameter, gradient) in enumerate(zip(parameters, gradients, strict=True)):
        state = optimizer.state.get(parameter)
        group = optimizer.param_groups[held.groups[column]]
        moment = None if gradient is None or not isinstance(state, dict) else _moment(state, group)
        if gradient is None or moment is None or not isinstance(state, dict) or moment.device != gradient.device:
            continue  # it was moved to the host
        if moment.shape != gradient.shape:
            continue  # it belongs to a projection of the gradient
        step, decay, epsilon = state.get("step", group.get("step")), _decay(group), group.get("eps")
        if step is None or decay is None or not isinstance(epsilon, float | int):
            continue
        moments.columns.append(column)
        moments.gradients.append(gradient)
        moments.moments.append(moment)
        moments.epsilons.append(max(float(epsilon), SMALLEST_EPSILON))
        steps.append(step)
        decays.append(decay)
    if not moments.columns:
        return None
    with torch.no_grad():
        device = moments.moments[0].device
        decay_row = on_device(decays, device, widest(device))
        moments.corrections = list((1.0 - decay_row.pow(_row(steps, decay_row))).rsqrt_().unbind())
    return moments


def _moment(state: Mapping[str, Any], group: Mapping[str, Any]) -> Tensor | None:
    moment = state.get("max_exp_avg_sq" if group.get("amsgrad") else "exp_avg_sq")
    plain = type(moment) is Tensor and moment.layout is torch.strided and moment.is_floating_point()
    return moment if plain else None


def _decay(group: Mapping[str, Any]) -> float | None:
    betas = group.get("betas")
    usual = isinstance(betas, tuple | list) and len(betas) == 2 and isinstance(betas[1], float)
    return betas[1] if usual and betas is not None else None


# Steps taken by parameter; torch keeps them as tensors, on the host or on the device.
def _row(steps: list[Any], like: Tensor) -> Tensor:
    if not any(isinstance(step, Tensor) for step in steps):
        return on_device(steps, like.device, like.dtype)
    row = [
        step.reshape(()) if isinstance(step, Tensor) else torch.tensor(float(step), dtype=torch.float32)
        for step in steps
    ]
    if len({step.device for step in row}) > 1:
        row = [step.to(like.device, non_blocking=True) for step in row]
    return torch.stack(row).to(like, non_blocking=True)


QUANTITIES = ("adam_rms",)


class AdamRms(OptimizerProbe):
    part = "AdamW RMS"

    def after_step(self, view: StepView) -> None:
        if view.skipped:
            return
        held = view.layers.held(view.optimizer, view.step)
        moments = second_moments(view.optimizer, held)
        if moments is None:
            return
        with torch.no_grad():
            sums = self._sums(moments)
            if sums is None:
                return
            if view.unscale is not None and not _puts_back_unscaled(view.optimizer):
                sums = sums / view.unscale.to(sums, non_blocking=True).square()
            sizes = [moment.numel() for moment in moments.moments]
            rows = torch.stack((sums, on_device(sizes, sums.device, sums.dtype)))
            if len(sizes) < len(held.names):
                columns = on_device(moments.columns, sums.device, torch.long)
                rows = rows.new_zeros(2, len(held.names)).index_copy_(1, columns, rows)
            others = set(range(len(held.names))).difference(moments.columns)
            self._parts.add(view, held, rows, tuple(others))

    def blocks(self, step: int) -> Sequence[Block]:
        joined = self._parts.take()
        if joined is None:
            return ()
        blocks: list[Block] = []
        with torch.no_grad():
            if step % self.every == 0 and joined.complete:
                total, count = joined.rows.sum(1, keepdim=True)
                blocks.append(Block(signals_at(QUANTITIES, joined.place), (total / count).sqrt_()))
            if step % self.layers_every == 0:
                total, count = joined.layout.sums(joined.rows)
                columns = set(range(len(joined.layout.of_parameter))) - joined.unknown
                only = joined.layout.touched_by(columns)
                blocks.append(joined.layout.block(QUANTITIES, (total / count).sqrt_().unsqueeze(0), only))
        return blocks

    def _sums(self, moments: SecondMoments) -> Tensor | None:
        turns = turns_of_copies(moments.moments, self.budget_bytes)
        if turns is None:
            return None
        sums: list[Tensor] = []
        for pieces in turns:
            row = _sums_of_turn(moments, pieces)
            if row is None:
                return None
            sums.append(row)
        device, count = moments.moments[0].device, len(moments.moments)
        columns = [piece.column for pieces in turns for piece in pieces]
        whole = torch.cat([row.to(device, non_blocking=True) for row in sums])
        if columns == list(range(count)):
            return whole
        return whole.new_zeros(count).index_add_(0, on_device(columns, whole.device, torch.long), whole)


def _sums_of_turn(moments: SecondMoments, pieces: Sequence[Piece]) -> Tensor | None:
    copies = flat_copies([piece.of(moments.moments) for piece in pieces])
    torch_api.foreach_sqrt_(copies)
    corrections = [moments.corrections[piece.column] for piece in pieces]
    torch_api.foreach_mul_(
        copies, [factor.to(copy.device, non_blocking=True) for factor, copy in zip(corrections, copies, strict=True)]
    )
    torch_api.foreach_clamp_min_(copies, [moments.epsilons[piece.column] for piece in pieces])
    torch_api.foreach_reciprocal_(copies)
    torch_api.foreach_mul_(copies, [piece.of(moments.gradients) for piece in pieces])
    return squares(copies)


# Torch's fused kernels divide gradients in place, so that they are unscaled after the step.
def _puts_back_unscaled(optimizer: Optimizer) -> bool:
    return isinstance(optimizer, Adam) and any(bool(group.get("fused")) for group in optimizer.param_groups)


def _probe(context: ProbeContext) -> AdamRms:
    preset = context.settings.preset
    every_step = preset is not None and PRESETS[preset].adam_rms_every_step
    return AdamRms(1 if every_step else context.layers, context.layers, context.budget)


PROBES: tuple[ProbeFactory, ...] = (_probe,)
