"""Update norm and update ratio of the weights, of the whole model and by layer.

In: optimizers before and after their steps. Out: ``update_norm``, and ``update_ratio`` (update norm over the weight
norm before it). Guarantees: correct under every optimizer, because weights are compared; copies stay within the
memory budget and live for one step.

Where the weights exceed the budget they are measured in chunks, one chunk at each measured step. A layer is reported
with its chunk, the whole model once all chunks are measured. Steps that were not taken are not measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mlflow_stability.probes.block import Block
from mlflow_stability.probes.hooks import torch_api
from mlflow_stability.probes.parameters.layer_layout import LayerLayout, whole_signals
from mlflow_stability.probes.parameters.layers import HeldLayers
from mlflow_stability.probes.parameters.per_optimizer import (
    Joined,
    PartsByOptimizer,
    WholeNorms,
    on_host_if_there,
    ratio,
    weights_of,
    whole_norm,
)
from mlflow_stability.probes.probe import NORMS_EVERY, PeriodicProbe, ProbeFactory, StepView
from mlflow_stability.probes.tensors.device_numbers import on_device, widest
from mlflow_stability.probes.tensors.flat_copies import bytes_of_copy, copies_and_rows, copy_budget, flat_copies
from mlflow_stability.probes.tensors.gradient_norm import few_values, norm_of_row
from mlflow_stability.probes.tensors.memory_chunks import Piece, share_out
from mlflow_stability.probes.tensors.tensor_sums import squares
from mlflow_stability.vocabulary.measured import SignalType

SIGNALS = (
    SignalType(
        "update_norm",
        "L2 norm of what a step changed, taken from copies within `memory_budget`",
        "optimizer",
        exported="llm_update_norm",
        by_layer=True,
        combined="norm",
        of_steps_taken=True,
    ),
    SignalType(
        "update_ratio",
        "update norm over the norm of the weights: 1e-4 to 1e-2 is usual",
        "optimizer",
        exported="llm_update_ratio",
        by_layer=True,
        of_steps_taken=True,
        left_out="nan",
    ),
)

NEVER = -1


class UpdateChunks:
    """The turns of one optimizer."""

    def __init__(self, chunks: Sequence[Sequence[Piece]], columns: int, device: torch.device) -> None:
        self.chunks = chunks
        self.columns = columns
        self.just_completed = False
        """Whether the turn that was measured last is the last one."""
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
        """The pieces whose turn it is."""
        return self.chunks[self._at]

    @property
    def complete(self) -> bool:
        """Whether everything was measured at least once."""
        return NEVER not in self._measured

    def took(self, rows: Tensor, step: int, not_taken: Tensor | None) -> None:
        """Keep the squares of weights and updates of this turn, and go on to the next."""
        begin, end = self._starts[self._at], self._starts[self._at + 1]
        newest = self._newest[:, begin:end]
        rows = rows.to(newest, non_blocking=True)
        newest.copy_(rows if not_taken is None else torch.where(not_taken.to(newest) > 0, newest, rows))
        self._measured[self._at] = step
        self._at = (self._at + 1) % len(self.chunks)
        self.just_completed = self._at == 0

    def rows(self) -> Tensor:
        """The newest squares of weights and of updates; one column for each parameter."""
        return self._newest.new_zeros(2, self.columns).index_add_(1, self._index, self._newest)

    def steps(self) -> list[tuple[int, int]]:
        """For each parameter, at which steps its oldest and its newest piece were measured."""
        found = []
        for chunks in self._of_column:
            measured = [self._measured[chunk] for chunk in chunks]
            found.append((min(measured), max(measured)))
        return found


QUANTITIES = tuple(each.quantity for each in SIGNALS)
MOST_OPTIMIZERS = 32


@dataclass(frozen=True, slots=True)
class _Before:
    """What lies between the beginning and the end of an optimizer step."""

    optimizer: int
    pieces: list[Tensor]
    copies: list[Tensor]
    """None where few weights are kept as a row alone."""
    weights: Tensor | float
    """Their squares, one by one; or the norm of all."""
    rows: list[Tensor]
    """What the copies are parts of, where the whole model alone is measured; else none."""


FIRST = (1, 2, 4)
"""Steps at which the whole model is measured as well: a learning rate that is far too high shows at once."""


class WeightUpdates(PeriodicProbe):
    """The weights before and after."""

    part = "real updates"

    def __init__(self, every: int = 10, layers_every: int = 100, budget_bytes: int | None = None) -> None:
        super().__init__(every, layers_every)
        self.every = every
        """Every how many steps the whole model is measured, ..."""
        self.layers_every = layers_every
        """... and every how many steps its layers."""
        self.budget_bytes = budget_bytes
        """How many bytes copies may take; None: one hundredth of the device's memory, at most 256 MiB."""
        self._parts, self._whole = PartsByOptimizer(), WholeNorms()
        self._rotations: dict[HeldLayers, UpdateChunks | None] = {}
        self._now: list[UpdateChunks] = []
        self._before: _Before | None = None
        self._wanted_since = NEVER
        self._given: dict[LayerLayout, list[int]] = {}
        """For each layer, when it was given last."""
        self._layers_wanted = False
        """Whether there are layers that were not given since they were wanted."""

    def due(self, step: int) -> bool:
        """Whether this step is to be measured."""
        return super().due(step) or step in FIRST

    def next_due(self, step: int) -> int:
        """The next step that is due."""
        later = [each for each in FIRST if each > step]
        return min([super().next_due(step), *later])

    def before_step(self, view: StepView) -> None:
        """Copy the weights whose turn it is."""
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
        """Compare them with what they are now."""
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
        """The capture was interrupted half-way: let go of what was measured in it."""
        self._before, self._now = None, []
        self._parts.drop()
        self._whole.drop()

    def blocks(self, step: int) -> Sequence[Block]:
        """The updates of the capture."""
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
            longest = max(rotations, key=lambda each: len(each.chunks))
            whole = joined.complete and longest.just_completed and all(each.complete for each in rotations)
            if whole and (len(longest.chunks) > 1 or step % self.every == 0 or step in FIRST):
                blocks.append(Block(whole_signals(QUANTITIES, joined.place), _values(joined.rows.sum(1, True))))
            ready = self._ready(joined, rotations, step)
            self._layers_wanted = min(map(min, self._given.values())) < self._wanted_since
            if ready:
                sums = joined.layout.sums(joined.rows)
                blocks.append(joined.layout.block(QUANTITIES, _values(sums).view(2, -1), ready))
        return blocks

    def _rotation(self, held: HeldLayers, parameters: Sequence[Tensor]) -> UpdateChunks | None:
        """The turns of what an optimizer holds; None where a single row of a tensor is more than the budget."""
        if held not in self._rotations:
            if len(self._rotations) >= MOST_OPTIMIZERS:
                self._rotations.clear()
            device = parameters[0].device
            budget = copy_budget(device) if self.budget_bytes is None else self.budget_bytes
            shapes = [tuple(each.shape) for each in parameters]
            chunks = share_out(shapes, [bytes_of_copy(each) for each in parameters], held.names, budget)
            self._rotations[held] = None if chunks is None else UpdateChunks(chunks, len(parameters), device)
        return self._rotations[held]

    def _ready(self, joined: Joined, rotations: Sequence[UpdateChunks], step: int) -> tuple[int, ...]:
        """The layers that are wanted, measured now, and of which every piece was measured since they were given."""
        layout = joined.layout
        given = self._given.get(layout)
        if given is None:
            if len(self._given) >= MOST_OPTIMIZERS:
                self._given.clear()
            given = self._given[layout] = [NEVER] * len(layout.names)
        if self._wanted_since == NEVER or min(given) >= self._wanted_since:
            return ()
        oldest, newest = [step] * len(given), [NEVER] * len(given)
        measured = [each for rotation in rotations for each in rotation.steps()]
        for layer, (first, last) in zip(layout.of_parameter, measured, strict=True):
            oldest[layer] = min(oldest[layer], first)
            newest[layer] = max(newest[layer], last)
        wanted = [layer for layer, last in enumerate(given) if last < self._wanted_since]
        ready = tuple(layer for layer in wanted if oldest[layer] > given[layer] and newest[layer] == step)
        for layer in ready:
            given[layer] = step
        return ready


def _wide(row: Tensor) -> Tensor:
    """At least in single precision, as copies are."""
    return row.to(torch.promote_types(row.dtype, torch.float32))


def _values(squared: Tensor) -> Tensor:
    """Norm and ratio, from the squares of weights and updates."""
    weights, updates = squared.sqrt()
    return torch.cat((updates, torch.where(weights > 0, updates / weights, torch.nan)))


PROBES: tuple[ProbeFactory, ...] = (lambda context: WeightUpdates(NORMS_EVERY, context.layers, context.budget),)
