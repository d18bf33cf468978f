"""Extreme values of gradients and weights of the whole model, and non-finite gradients of each layer.

``grad_max``, ``grad_zeros`` (share of zeros), ``param_max``, ``param_nonfinite_count``, ``param_large`` (above `large`)
and ``param_small`` (below `small`, not zero). ``grad_nonfinite_count`` is counted
on demand alone, in a broken step. Guarantees: counts are exact; copies stay within the memory budget; sparse gradients
are left out.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer

from mlflow_stability.probes.gradient_norm import dense_gradients
from mlflow_stability.probes.hooks import torch_api
from mlflow_stability.probes.parameters.layers import Layers
from mlflow_stability.probes.parameters.per_optimizer import OptimizerProbe
from mlflow_stability.probes.probe import ProbeFactory, StepView
from mlflow_stability.probes.step.readback import Block, signals_at
from mlflow_stability.probes.tensor_sums import (
    as_real,
    flat_copies,
    flat_rows,
    largest_of,
    nonzeros_of,
    on_device,
    scalars,
    turns_of_copies,
    widest,
)
from mlflow_stability.vocabulary.measured.signal_type import SignalType

SIGNALS = (
    SignalType(
        "grad_max",
        "largest gradient; every `layers_every_n_steps`",
        "gradients",
        exported="llm_gradient_max",
        combined="max",
    ),
    SignalType("grad_zeros", "share of gradients that are zero; every `layers_every_n_steps`", "gradients"),
    SignalType(
        "param_max", "largest weight; every 1000 steps", "optimizer", exported="llm_parameter_max", combined="max"
    ),
    SignalType("param_nonfinite_count", "weights that are not finite; every 1000 steps", "optimizer"),
    SignalType("param_large", "weights above 1e6; every 1000 steps", "optimizer"),
    SignalType("param_small", "weights below 1e-10 that are not zero; every 1000 steps", "optimizer"),
    SignalType(
        "grad_nonfinite_count",
        "gradients of a broken step that were not finite; in the record",
        "gradients",
        left_out="zero",
    ),
)

QUANTITIES = ("grad_max", "grad_zeros")
NONFINITE = ("grad_nonfinite_count",)


class GradientExtremes(OptimizerProbe):
    part = "gradient extremes"

    def before_step(self, view: StepView) -> None:
        held = view.layers.held(view.optimizer, view.step)
        gradients, _ = dense_gradients(held.parameters(view.optimizer))
        largest, nonzeros = scalars(gradients, largest_of), scalars(gradients, nonzeros_of)
        if largest is None or nonzeros is None:
            return
        with torch.no_grad():
            if view.unscale is not None:
                largest = largest / view.unscale.to(largest, non_blocking=True)
            sizes = on_device(
                [0 if gradient is None else gradient.numel() for gradient in gradients], largest.device, torch.long
            )
            self._parts.add(view, held, torch.stack((largest, nonzeros, sizes.to(largest))))

    def blocks(self, _step: int) -> Sequence[Block]:
        joined = self._parts.take()
        if joined is None or not joined.complete:
            return ()
        with torch.no_grad():
            return [Block(signals_at(QUANTITIES, joined.place), _values(*joined.rows))]


def _values(largest: Tensor, nonzeros: Tensor, sizes: Tensor) -> Tensor:
    return torch.stack((largest.max(), 1.0 - nonzeros.sum() / sizes.sum()))


WEIGHT_QUANTITIES = ("param_max", "param_nonfinite_count", "param_large", "param_small")
BYTES_FOR_COMPARING = 2


class WeightExtremes(OptimizerProbe):
    part = "weight extremes"

    def __init__(self, every: int = 1000, budget_bytes: int | None = None) -> None:
        super().__init__(every, budget_bytes=budget_bytes)
        self.large = 1e6  # absolute value
        self.small = 1e-10  # absolute value

    def before_step(self, view: StepView) -> None:
        held = view.layers.held(view.optimizer, view.step)
        parameters = [as_real(parameter) for parameter in held.parameters(view.optimizer)]
        largest = scalars(parameters, largest_of)
        counts = self._counts(parameters)
        if largest is not None and counts is not None:
            with torch.no_grad():
                rows = largest.new_zeros(4, len(largest))
                rows[0] = largest
                rows[1:, 0] = counts.to(largest, non_blocking=True)  # they are of all parameters together
                self._parts.add(view, held, rows)

    def blocks(self, _step: int) -> Sequence[Block]:
        joined = self._parts.take()
        if joined is None or not joined.complete:
            return ()
        with torch.no_grad():
            values = torch.cat((joined.rows[:1].amax(1), joined.rows[1:].sum(1)))
            return [Block(signals_at(WEIGHT_QUANTITIES, joined.place), values)]

    def _counts(self, parameters: Sequence[Tensor]) -> Tensor | None:
        turns = turns_of_copies(parameters, self.budget_bytes, extra_bytes=BYTES_FOR_COMPARING) if parameters else None
        if turns is None:
            return None
        device = parameters[0].device
        counts = torch.zeros(3, device=device, dtype=widest(device))
        with torch.no_grad():
            for pieces in turns:
                counts += self._of_turn([piece.of(parameters) for piece in pieces]).to(counts, non_blocking=True)
        return counts

    # A function of its own, so that the copies of one turn are gone before those of the next are made.
    def _of_turn(self, pieces: Sequence[Tensor]) -> Tensor:
        first, *others = [self._of_row(row.abs_()) for row in flat_rows(pieces)]
        for other in others:
            first = first + other.to(first, non_blocking=True)
        return first

    def _of_row(self, row: Tensor) -> Tensor:
        finite = torch.count_nonzero(row <= torch.finfo(row.dtype).max)
        large = torch.count_nonzero(row > self.large) - torch.count_nonzero(row == torch.inf)
        small = torch.count_nonzero(row < self.small) - torch.count_nonzero(row == 0)
        return torch.stack((len(row) - finite, large, small))


WEIGHTS_EVERY_STEPS = 1000
PROBES: tuple[ProbeFactory, ...] = (
    lambda context: GradientExtremes(context.layers),
    lambda context: WeightExtremes(WEIGHTS_EVERY_STEPS, context.budget),
)


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
            return layout.block(NONFINITE, layout.sums(row))


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
