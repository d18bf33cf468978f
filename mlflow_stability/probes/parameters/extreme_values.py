"""Extreme values of gradients and weights, of the whole model.

In: optimizers before their steps. Out: ``grad_max``, ``grad_zeros`` (share of zeros), ``param_max``,
``param_nonfinite_count``, ``param_large`` (above `large`), ``param_small`` (below `small`, not zero). Guarantees:
counts are exact; copies stay within the memory budget; sparse gradients are left out.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mlflow_stability.probes.block import Block
from mlflow_stability.probes.parameters.layer_layout import whole_signals
from mlflow_stability.probes.parameters.per_optimizer import PartsByOptimizer
from mlflow_stability.probes.probe import PeriodicProbe, ProbeFactory, StepView
from mlflow_stability.probes.tensors.device_numbers import on_device, widest
from mlflow_stability.probes.tensors.flat_copies import bytes_of_copy, copy_budget, flat_rows
from mlflow_stability.probes.tensors.gradient_norm import dense_gradients
from mlflow_stability.probes.tensors.memory_chunks import share_out
from mlflow_stability.probes.tensors.tensor_sums import largest_of, nonzeros_of, scalars
from mlflow_stability.vocabulary.measured import SignalType

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

QUANTITIES = tuple(each.quantity for each in SIGNALS[:2])


class GradientExtremes(PeriodicProbe):
    """The ends of the gradients' distribution."""

    part = "gradient extremes"

    def __init__(self, every: int = 100) -> None:
        super().__init__(every)
        self.every = every
        """Every how many steps they are measured."""
        self._parts = PartsByOptimizer()

    def before_step(self, view: StepView) -> None:
        """Look at one optimizer's gradients."""
        held = view.layers.held(view.optimizer, view.step)
        gradients, _ = dense_gradients(held.parameters(view.optimizer))
        largest, nonzeros = scalars(gradients, largest_of), scalars(gradients, nonzeros_of)
        if largest is None or nonzeros is None:
            return
        with torch.no_grad():
            if view.unscale is not None:
                largest = largest / view.unscale.to(largest, non_blocking=True)
            sizes = on_device([0 if each is None else each.numel() for each in gradients], largest.device, torch.long)
            self._parts.add(view, held, torch.stack((largest, nonzeros, sizes.to(largest))))

    def forget(self) -> None:
        """The capture was interrupted half-way: let go of what was measured in it."""
        self._parts.drop()

    def blocks(self, _step: int) -> Sequence[Block]:
        """The extremes of the capture."""
        joined = self._parts.take()
        if joined is None or not joined.complete:
            return ()
        with torch.no_grad():
            return [Block(whole_signals(QUANTITIES, joined.place), _values(*joined.rows))]


def _values(largest: Tensor, nonzeros: Tensor, sizes: Tensor) -> Tensor:
    return torch.stack((largest.max(), 1.0 - nonzeros.sum() / sizes.sum()))


WEIGHT_QUANTITIES = tuple(each.quantity for each in SIGNALS[2:])
BYTES_FOR_COMPARING = 2


class WeightExtremes(PeriodicProbe):
    """The ends of the weights' distribution."""

    part = "weight extremes"

    def __init__(self, every: int = 1000, budget_bytes: int | None = None) -> None:
        super().__init__(every)
        self.every = every
        """Every how many steps they are measured."""
        self.large = 1e6
        """Above which absolute value a weight is very large."""
        self.small = 1e-10
        """Below which absolute value a weight that is not zero is very small."""
        self.budget_bytes = budget_bytes
        """How many bytes copies may take; None: one hundredth of the device's memory, at most 256 MiB."""
        self._parts = PartsByOptimizer()

    def before_step(self, view: StepView) -> None:
        """Count one optimizer's weights."""
        held = view.layers.held(view.optimizer, view.step)
        parameters = held.parameters(view.optimizer)
        largest = scalars(parameters, largest_of)
        counts = self._counts(parameters)
        if largest is not None and counts is not None:
            with torch.no_grad():
                rows = largest.new_zeros(4, len(largest))
                rows[0] = largest
                rows[1:, 0] = counts.to(largest, non_blocking=True)  # they are of all parameters together
                self._parts.add(view, held, rows)

    def forget(self) -> None:
        """The capture was interrupted half-way: let go of what was measured in it."""
        self._parts.drop()

    def blocks(self, _step: int) -> Sequence[Block]:
        """The counts of the capture."""
        joined = self._parts.take()
        if joined is None or not joined.complete:
            return ()
        with torch.no_grad():
            values = torch.cat((joined.rows[:1].amax(1), joined.rows[1:].sum(1)))
            return [Block(whole_signals(WEIGHT_QUANTITIES, joined.place), values)]

    def _counts(self, parameters: Sequence[Tensor]) -> Tensor | None:
        """How many are not finite, large, small; None where not even a row of a tensor fits into the budget."""
        if not parameters:
            return None
        device = parameters[0].device
        budget = copy_budget(device) if self.budget_bytes is None else self.budget_bytes
        sizes = [bytes_of_copy(each) + BYTES_FOR_COMPARING for each in parameters]
        chunks = share_out([tuple(each.shape) for each in parameters], sizes, range(len(sizes)), budget)
        if chunks is None:
            return None
        counts = torch.zeros(3, device=device, dtype=widest(device))
        with torch.no_grad():
            for chunk in chunks:
                counts += self._of_chunk([piece.of(parameters) for piece in chunk]).to(counts, non_blocking=True)
        return counts

    def _of_chunk(self, pieces: Sequence[Tensor]) -> Tensor:
        """A function of its own, so that the copies of one turn are gone before those of the next are made."""
        first, *others = [self._of_row(row.abs_()) for row in flat_rows(pieces)]
        for each in others:
            first = first + each.to(first, non_blocking=True)
        return first

    def _of_row(self, row: Tensor) -> Tensor:
        finite = torch.count_nonzero(row <= torch.finfo(row.dtype).max)
        large = torch.count_nonzero(row > self.large) - torch.count_nonzero(row == torch.inf)
        small = torch.count_nonzero(row < self.small) - torch.count_nonzero(row == 0)
        return torch.stack((len(row) - finite, large, small))


WEIGHTS_EVERY = 1000
"""Every how many steps weights are looked at that are huge, tiny or not finite."""
PROBES: tuple[ProbeFactory, ...] = (
    lambda context: GradientExtremes(context.layers),
    lambda context: WeightExtremes(WEIGHTS_EVERY, context.budget),
)
