"""Norms of weights, gradients, updates and momentum, and their ratios, of the whole model and by layer.

Gradients are measured as the optimizer gets them: after the script has clipped them. A layer without a gradient has a
norm of 0; where all weights are zero, ratios are NaN. Guarantees: norms take two kernels over all tensors and a few
over their norms; updates are correct under every optimizer, because weights are compared; copies stay within the memory
budget and live for one step; an optimizer's state is read and never made. Where the weights exceed the budget their
updates are measured in turns, one at each measured step. Steps that were not taken are not measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import nan
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from mlflow_stability.probes.gradient_norm import dense_gradients, few_values, local_part, norm_of_row
from mlflow_stability.probes.hooks import torch_api
from mlflow_stability.probes.parameters.layers import HeldLayers, LayerLayout
from mlflow_stability.probes.parameters.per_optimizer import (
    Joined,
    OptimizerProbe,
    on_host_if_there,
    ratio,
    weights_of,
    whole_norm,
)
from mlflow_stability.probes.probe import NORMS_EVERY, ProbeFactory, StepView
from mlflow_stability.probes.step.readback import Block, signals_at
from mlflow_stability.probes.tensor_sums import (
    Piece,
    copies_and_rows,
    flat_copies,
    on_device,
    squares,
    turns_of_copies,
    widest,
)
from mlflow_stability.vocabulary.measured.signal_type import SignalType, signals

SIGNALS = signals(
    SignalType(
        "param_norm", "L2 norm of the weights", topic="optimizer", exported="llm_parameter_norm", combined="norm"
    ),
    SignalType(
        "grad_param_ratio",
        "gradient norm over the norm of the weights",
        topic="gradients",
        exported="llm_gradient_parameter_ratio",
        left_out="nan",
    ),
    SignalType(
        "lr_ratio",
        "learning rate times gradient norm over the norm of the weights",
        topic="optimizer",
        exported="llm_learning_rate_ratio",
        left_out="nan",
    ),
    SignalType(
        "momentum_norm",
        "L2 norm of the optimizer's momentum",
        topic="optimizer",
        exported="llm_momentum_norm",
        combined="norm",
    ),
    SignalType(
        "update_norm",
        "L2 norm of what a step changed, taken from copies within `memory_budget`",
        topic="optimizer",
        exported="llm_update_norm",
        combined="norm",
        of_steps_taken=True,
    ),
    SignalType(
        "update_ratio",
        "update norm over the norm of the weights: 1e-4 to 1e-2 is usual",
        topic="optimizer",
        exported="llm_update_ratio",
        of_steps_taken=True,
        left_out="nan",
    ),
    by_layer=True,
)

RATIOS = ("grad_param_ratio", "lr_ratio")


class LayerNorms(OptimizerProbe):
    part = "norms of weights"

    def __init__(self, every: int = 10, layers_every: int = 100) -> None:
        super().__init__(every, layers_every)
        self._some_unknown = False  # there are gradients whose norm is unknown here

    def before_step(self, view: StepView) -> None:
        held = view.layers.held(view.optimizer, view.step)
        parameters = held.parameters(view.optimizer)
        if not parameters or held.is_split:
            return
        gradients, unknown = dense_gradients(parameters)
        self._some_unknown = self._some_unknown or bool(unknown)
        by_layer = view.step % self.layers_every == 0
        rate = None if by_layer else _one_rate(view.optimizer)
        with torch.no_grad():
            if rate is not None:
                if view.norm is not None and held.is_all_of(view.optimizer) and not unknown:
                    forces = view.norm if isinstance(view.norm, float) else on_host_if_there(view.norm)
                else:
                    forces = whole_norm([gradient for gradient in gradients if gradient is not None])
                    if view.unscale is not None:
                        forces = forces / on_host_if_there(view.unscale)
                self._whole.add(view, held, weights_of(view, parameters).norm, forces, forces * rate)
                return
            rows = _squares(view, held, parameters, gradients)
            self._whole.add(view, held, *map(on_host_if_there, rows.sum(1).sqrt_().unbind()))
        if by_layer:
            self._parts.add(view, held, rows, unknown)

    def forget(self) -> None:
        super().forget()
        self._some_unknown = False

    def blocks(self, step: int) -> Sequence[Block]:
        joined = self._parts.take()
        names = ("param_norm",) if self._some_unknown else ("param_norm", *RATIOS)
        whole = self._whole.block(names, lambda w, f, m: (w, ratio(f, w), ratio(m, w))[: len(names)])
        self._some_unknown = False
        with torch.no_grad():
            layers = [] if joined is None else _by_layer(joined)
        return [*(whole if step % self.every == 0 else ()), *layers]


def _squares(
    view: StepView, held: HeldLayers, parameters: Sequence[Tensor], gradients: Sequence[Tensor | None]
) -> Tensor:
    weights, forces = squares(parameters), squares(gradients)
    assert weights is not None
    forces = weights.new_zeros(len(weights)) if forces is None else forces.to(weights.device, non_blocking=True)
    if view.unscale is not None:
        forces = forces / view.unscale.to(forces, non_blocking=True).square()
    rates = rates_by_parameter(view.optimizer, held.groups, forces)
    return torch.stack((weights, forces, forces * rates.square()))


def _one_rate(optimizer: Optimizer) -> float | Tensor | None:
    rates: list[float | Tensor | None] = [group.get("lr") for group in optimizer.param_groups]
    first = rates[0]
    if len(rates) > 1 and (not {*map(type, rates)} <= {float, int} or len({*rates}) > 1):
        return None
    if isinstance(first, Tensor):
        return on_host_if_there(first.detach())
    # `float.__float__`, because a subclass of the script may convert itself in another way.
    return nan if first is None else float.__float__(first) if isinstance(first, float) else float(first)


def _by_layer(joined: Joined) -> list[Block]:
    norms = joined.layout.sums(joined.rows).sqrt_()
    weights = norms[0]
    forces = torch.cat((norms[1:2], torch.where(weights > 0, norms[1:] / weights, torch.nan)))
    only = None
    if joined.unknown:
        hidden = joined.layout.touched_by(joined.unknown)
        only = tuple(at for at in range(len(joined.layout.names)) if at not in hidden)
    return [joined.layout.block(("param_norm",), norms[:1]), joined.layout.block(("grad_norm", *RATIOS), forces, only)]


def rates_by_parameter(optimizer: Optimizer, groups: Sequence[int], like: Tensor) -> Tensor:
    """Return the learning rate of each parameter, by its group; NaN where a group has none."""
    rates: list[Any] = [group.get("lr", nan) for group in optimizer.param_groups]
    if not any(isinstance(rate, Tensor) for rate in rates):
        return on_device([rates[group] for group in groups], like.device, like.dtype)
    row = [
        local_part(rate.detach()).reshape(()).to(like, non_blocking=True)
        if isinstance(rate, Tensor)
        else like.new_full((), rate)
        for rate in rates
    ]
    return torch.stack(row)[on_device(groups, like.device, torch.long)]


BUFFERS = ("exp_avg", "momentum_buffer")
MOMENTUM = ("momentum_norm",)


class MomentumNorm(OptimizerProbe):
    part = "momentum"

    def after_step(self, view: StepView) -> None:
        held = view.layers.held(view.optimizer, view.step)
        if held.is_split:
            return
        states = view.optimizer.state
        buffers = [_buffer(states.get(parameter)) for parameter in held.parameters(view.optimizer)]
        there = [buffer for buffer in buffers if buffer is not None]
        if there:
            with torch.no_grad():
                self._whole.add(view, held, whole_norm(there))
        if view.step % self.layers_every == 0:
            momentum = squares(buffers)
            if momentum is not None:
                self._parts.add(view, held, momentum.unsqueeze(0))

    def blocks(self, step: int) -> Sequence[Block]:
        joined = self._parts.take()
        blocks = list(self._whole.block(MOMENTUM, lambda norm: (norm,)))
        if step % self.every:
            blocks = []
        if joined is not None:
            with torch.no_grad():
                blocks.append(joined.layout.block(MOMENTUM, joined.layout.sums(joined.rows).sqrt_()))
        return blocks


def _buffer(state: object) -> Tensor | None:
    if not isinstance(state, dict):
        return None
    for name in BUFFERS:
        buffer = state.get(name)
        plain = buffer if type(buffer) is Tensor and buffer.layout is torch.strided else None
        if plain is not None and (plain.is_floating_point() or plain.is_complex()):
            return plain
    return None


NEVER = -1


class UpdateChunks:
    """Turns in which the weights of one optimizer are measured."""

    def __init__(self, chunks: Sequence[Sequence[Piece]], columns: int, device: torch.device) -> None:
        self.chunks = chunks
        self.columns = columns
        self.just_completed = False  # the turn that was measured last is the last one
        self._at = 0
        self._measured = [NEVER] * len(chunks)
        starts = [0]
        for chunk in chunks:
            starts.append(starts[-1] + len(chunk))
        self._starts = starts
        self._of_column: list[list[int]] = [[] for _ in range(columns)]
        for number, chunk in enumerate(chunks):
            for piece in chunk:
                self._of_column[piece.column].append(number)
        pieces = [piece.column for chunk in chunks for piece in chunk]
        self._index = on_device(pieces, device, torch.long)
        self._newest = torch.full((2, len(pieces)), torch.nan, dtype=widest(device), device=device)

    @property
    def now(self) -> Sequence[Piece]:
        return self.chunks[self._at]

    @property
    def complete(self) -> bool:
        return NEVER not in self._measured

    def took(self, rows: Tensor, step: int, not_taken: Tensor | None) -> None:
        """Store the squares of weights and updates of this turn, and begin the next."""
        begin, end = self._starts[self._at], self._starts[self._at + 1]
        newest = self._newest[:, begin:end]
        rows = rows.to(newest, non_blocking=True)
        newest.copy_(rows if not_taken is None else torch.where(not_taken.to(newest) > 0, newest, rows))
        self._measured[self._at] = step
        self._at = (self._at + 1) % len(self.chunks)
        self.just_completed = self._at == 0

    def rows(self) -> Tensor:
        """Return the newest squares of weights and updates, with a column for each parameter."""
        return self._newest.new_zeros(2, self.columns).index_add_(1, self._index, self._newest)

    def steps(self) -> list[tuple[int, int]]:
        """Return the steps at which the oldest and the newest piece of each parameter were measured."""
        measured = [[self._measured[chunk] for chunk in chunks] for chunks in self._of_column]
        return [(min(steps), max(steps)) for steps in measured]


QUANTITIES = ("update_norm", "update_ratio")
MAX_OPTIMIZERS = 32


@dataclass(frozen=True, slots=True)
class _Before:
    optimizer: int
    pieces: list[Tensor]
    copies: list[Tensor]  # empty if few weights are kept as a row alone
    weights: Tensor | float  # their squares by piece, or the norm of all
    rows: list[Tensor]  # rows of which the copies are parts, if the whole model alone is measured


FIRST_STEPS = (1, 2, 4)  # measured as well: a learning rate that is far too high shows at once


class WeightUpdates(OptimizerProbe):
    part = "real updates"

    def __init__(self, every: int = 10, layers_every: int = 100, budget_bytes: int | None = None) -> None:
        super().__init__(every, layers_every, budget_bytes)
        self._rotations: dict[HeldLayers, UpdateChunks | None] = {}
        self._now: list[UpdateChunks] = []
        self._before: _Before | None = None
        self._wanted_since = NEVER
        self._reported: dict[LayerLayout, list[int]] = {}  # step at which each layer was reported last
        self._layers_wanted = False  # some layers were not reported since then

    def due(self, step: int) -> bool:
        return super().due(step) or step in FIRST_STEPS

    def next_due(self, step: int) -> int:
        later = [first for first in FIRST_STEPS if first > step]
        return min([super().next_due(step), *later])

    def before_step(self, view: StepView) -> None:
        self._before = None
        held = view.layers.held(view.optimizer, view.step)
        parameters = held.parameters(view.optimizer)
        rotation = self._rotation(held, parameters) if parameters and not held.is_split else None
        if rotation is None:
            return
        if len(rotation.chunks) == 1 and not self._layers_wanted and view.step % self.layers_every:
            taken = weights_of(view, parameters)
            copies, rows = ([], [_wide(taken.row)]) if taken.row is not None else copies_and_rows(parameters)
            self._before = _Before(id(view.optimizer), parameters, copies, taken.norm, rows)
            return
        pieces = [piece.of(parameters) for piece in rotation.now]
        copies = flat_copies(pieces)
        weights = squares(copies)
        if weights is not None:
            self._before = _Before(id(view.optimizer), pieces, copies, weights, [])

    def after_step(self, view: StepView) -> None:
        before, self._before = self._before, None
        if before is None or view.skipped or before.optimizer != id(view.optimizer):
            return
        held = view.layers.held(view.optimizer, view.step)
        rotation = self._rotations.get(held)
        if rotation is None:
            return
        with torch.no_grad():
            if not before.copies:
                now = few_values(before.pieces)
                if now is not None:
                    moved = norm_of_row(_wide(now) - before.rows[0])
                    self._whole.add(view, held, before.weights, on_host_if_there(moved))
                return
            torch_api.foreach_sub_(before.copies, before.pieces)
            if not isinstance(before.weights, Tensor) or before.rows:
                self._whole.add(view, held, before.weights, whole_norm(before.rows))
                return
            updates = squares(before.copies)
            if updates is None:
                return
            found_inf = getattr(view.optimizer, "found_inf", None)
            rotation.took(torch.stack((before.weights, updates.to(before.weights.device))), view.step, found_inf)
            self._parts.add(view, held, rotation.rows())
        self._now.append(rotation)

    def forget(self) -> None:
        super().forget()
        self._before, self._now = None, []

    def blocks(self, step: int) -> Sequence[Block]:
        self._before = None
        if step % self.layers_every == 0:
            self._wanted_since, self._layers_wanted = step, True
        rotations, self._now = self._now, []
        joined = self._parts.take()
        whole_blocks = self._whole.block(QUANTITIES, lambda w, u: (u, ratio(u, w)), has_others=joined is not None)
        if joined is None:
            return whole_blocks
        blocks: list[Block] = []
        with torch.no_grad():
            longest = max(rotations, key=lambda rotation: len(rotation.chunks))
            whole = joined.complete and longest.just_completed and all(rotation.complete for rotation in rotations)
            if whole and (len(longest.chunks) > 1 or step % self.every == 0 or step in FIRST_STEPS):
                blocks.append(Block(signals_at(QUANTITIES, joined.place), _values(joined.rows.sum(1, True))))
            ready = self._ready(joined, rotations, step)
            self._layers_wanted = min(map(min, self._reported.values())) < self._wanted_since
            if ready:
                sums = joined.layout.sums(joined.rows)
                blocks.append(joined.layout.block(QUANTITIES, _values(sums).view(2, -1), ready))
        return blocks

    def _rotation(self, held: HeldLayers, parameters: Sequence[Tensor]) -> UpdateChunks | None:
        if held not in self._rotations:
            if len(self._rotations) >= MAX_OPTIMIZERS:
                self._rotations.clear()
            chunks = turns_of_copies(parameters, self.budget_bytes, held.names)
            device = parameters[0].device
            self._rotations[held] = None if chunks is None else UpdateChunks(chunks, len(parameters), device)
        return self._rotations[held]

    def _ready(self, joined: Joined, rotations: Sequence[UpdateChunks], step: int) -> tuple[int, ...]:
        layout = joined.layout
        reported = self._reported.get(layout)
        if reported is None:
            if len(self._reported) >= MAX_OPTIMIZERS:
                self._reported.clear()
            reported = self._reported[layout] = [NEVER] * len(layout.names)
        if self._wanted_since == NEVER or min(reported) >= self._wanted_since:
            return ()
        oldest, newest = [step] * len(reported), [NEVER] * len(reported)
        measured = [steps for rotation in rotations for steps in rotation.steps()]
        for layer, (first, last) in zip(layout.of_parameter, measured, strict=True):
            oldest[layer] = min(oldest[layer], first)
            newest[layer] = max(newest[layer], last)
        wanted = [layer for layer, last in enumerate(reported) if last < self._wanted_since]
        ready = tuple(layer for layer in wanted if oldest[layer] > reported[layer] and newest[layer] == step)
        for layer in ready:
            reported[layer] = step
        return ready


def _wide(row: Tensor) -> Tensor:
    return row.to(torch.promote_types(row.dtype, torch.float32))


def _values(squared: Tensor) -> Tensor:
    weights, updates = squared.sqrt()
    return torch.cat((updates, torch.where(weights > 0, updates / weights, torch.nan)))


PROBES: tuple[ProbeFactory, ...] = (
    lambda context: LayerNorms(NORMS_EVERY, context.layers),
    lambda context: MomentumNorm(NORMS_EVERY, context.layers),
    lambda context: WeightUpdates(NORMS_EVERY, context.layers, context.budget),
)
