"""Extreme values of gradients and weights, of the whole model.

``grad_max``, ``grad_zeros`` (share of zeros), ``param_max``, ``param_nonfinite_count``, ``param_large`` (above `large`)
and ``param_small`` (below `small`, not zero). Guarantees: counts are exact; copies stay within the memory budget;
sparse gradients are left out.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mlflow_stability.probes.block import Block, signals_at
from mlflow_stability.probes.flat_copies import flat_rows, turns_of_copies
from mlflow_stability.probes.gradient_norm import dense_gradients
from mlflow_stability.probes.parameters.per_optimizer import OptimizerProbe
from mlflow_stability.probes.probe import ProbeFactory, StepView
from mlflow_stability.probes.tensor_sums import as_real, largest_of, nonzeros_of, on_device, scalars, widest
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
)

QUANTITIES = ("grad_max", "grad_zeros")


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
