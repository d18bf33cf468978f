"""Joins what a probe measured for each optimizer of a capture.

Guarantees: a layer whose parameters are shared out among optimizers, as with Muon and AdamW, is one layer again; a
measurement of the whole model takes no kernel for its layers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import hypot, isnan, nan
from typing import cast

import torch
from torch import Tensor

from mlflow_stability.probes.gradient_norm import few_values, norm_of_row, total_norm
from mlflow_stability.probes.parameters.layers import HeldLayers, LayerLayout
from mlflow_stability.probes.probe import PeriodicProbe, StepView
from mlflow_stability.probes.step.readback import Block, signals_at, value_on_host


@dataclass(frozen=True, slots=True)
class Joined:
    layout: LayerLayout
    rows: Tensor  # one column for each parameter
    complete: bool  # these are all trained parameters, so that their sum is that of the whole model
    place: str  # place of signals of the whole model
    unknown: frozenset[int]  # columns that could not be measured


class PartsByOptimizer:
    """Rows of the optimizers of one capture, with a column for each parameter."""

    def __init__(self) -> None:
        self._held: list[HeldLayers] = []
        self._rows: list[Tensor] = []
        self._unknown: list[int] = []
        self._view: StepView | None = None

    def add(self, view: StepView, held: HeldLayers, rows: Tensor, unknown: tuple[int, ...] = ()) -> None:
        """Add the rows of one optimizer; `unknown`: columns that could not be measured."""
        before = sum(len(other.names) for other in self._held)
        self._held.append(held)
        self._rows.append(rows)
        self._unknown.extend(before + column for column in unknown)
        self._view = view

    def take(self) -> Joined | None:
        """Return all rows side by side on one device and forget them; None if there were none."""
        if self._view is None:
            return None
        device = next((row.device for row in self._rows if not row.is_cpu), self._rows[0].device)
        rows = [row.to(device, non_blocking=True) for row in self._rows]
        layout = self._view.layers.layout(self._held)
        joined = Joined(
            layout,
            rows[0] if len(rows) == 1 else torch.cat(rows, 1),
            all(held.complete for held in self._held),
            self._view.place,
            frozenset(self._unknown),
        )
        self.drop()
        return joined

    def drop(self) -> None:
        self._held, self._rows, self._unknown, self._view = [], [], [], None


class WholeNorms:
    """Norms over all parameters, from those of each optimizer of one capture.

    Norms on the host are combined there; from a device only the norms are sent.
    """

    def __init__(self) -> None:
        self._norms: list[float | Tensor] = []
        self._count = 0
        self._place = ""
        self._complete = True

    def add(self, view: StepView, held: HeldLayers, *norms: float | Tensor) -> None:
        """Add norms of one optimizer's parameters, the same number of them each time."""
        self._norms += norms
        self._count, self._place = len(norms), view.place
        self._complete = self._complete and held.complete

    def block(
        self, quantities: tuple[str, ...], values_of: Callable[..., Sequence[float]], has_others: bool = False
    ) -> Sequence[Block]:
        """Return a block of `values_of` the norms of all optimizers together; nothing if they are incomplete."""
        norms, count, complete = self._norms, self._count, self._complete and not has_others
        signals = signals_at(quantities, self._place)
        self.drop()
        if not norms or not complete:
            return ()

        def on_host(numbers: Sequence[float]) -> Sequence[float]:
            return values_of(*[root_of_squares(numbers[at::count]) for at in range(count)])

        on_device = next((norm for norm in norms if isinstance(norm, Tensor)), None)
        if on_device is None:
            return [Block(signals, tuple(on_host(cast(list[float], norms))))]
        row = [norm if isinstance(norm, Tensor) else on_device.new_full((), norm) for norm in norms]
        return [Block(signals, torch.stack([norm.to(on_device, non_blocking=True) for norm in row]), on_host)]

    def drop(self) -> None:
        self._norms, self._complete = [], True


class OptimizerProbe(PeriodicProbe):
    def __init__(self, every: int, layers_every: int | None = None, budget_bytes: int | None = None) -> None:
        super().__init__(*(period for period in (every, layers_every) if period is not None))
        self.every = every  # steps between measurements of the whole model
        self.layers_every = every if layers_every is None else layers_every  # steps between measurements by layer
        self.budget_bytes = budget_bytes  # of copies; None: `copy_budget`
        self._parts, self._whole = PartsByOptimizer(), WholeNorms()

    def forget(self) -> None:
        self._parts.drop()
        self._whole.drop()


def on_host_if_there(scalar: Tensor) -> float | Tensor:
    """Return a scalar as a number, unless a device would have to be waited for."""
    value = value_on_host(scalar)
    return scalar if value is None else value


def whole_norm(tensors: Sequence[Tensor]) -> float | Tensor:
    """Return the L2 norm of all: a number if they lie on the host, else a scalar on the device."""
    norm = total_norm(tensors)
    return 0.0 if norm is None else on_host_if_there(norm)


@dataclass(slots=True)
class Weights:
    norm: float | Tensor
    row: Tensor | None  # copy of them side by side, if they are few


def weights_of(view: StepView, parameters: Sequence[Tensor]) -> Weights:
    """Return norm and copy of all weights that an optimizer trains; taken once for all probes."""
    layers, key = view.layers, (id(view.optimizer), view.step)
    if layers.weights is None or layers.weights[0] != key:
        with torch.no_grad():
            row = few_values(parameters)
            norm = whole_norm(parameters) if row is None else on_host_if_there(norm_of_row(row))
        layers.weights = key, Weights(norm, row)
    weights: Weights = layers.weights[1]
    return weights


def ratio(norm: float, weights: float) -> float:
    """Return a norm over that of the weights; NaN if these are all zero."""
    return norm / weights if weights > 0 else nan


def root_of_squares(norms: Sequence[float]) -> float:
    """Return the norm of parts with these norms; infinity beside NaN is NaN."""
    return norms[0] if len(norms) == 1 else nan if any(map(isnan, norms)) else hypot(*norms)
