"""Joins what a probe measured for each optimizer of a capture.

In: for each optimizer, rows with a column for each parameter, or norms over all of them. Out: the rows of all of them
side by side, on one device; a block for the whole model. Guarantees: a layer whose parameters are shared out among
optimizers, as with Muon and AdamW, is one layer again; a look at the whole model takes no kernel for its layers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import hypot, isnan, nan
from typing import cast

import torch
from torch import Tensor

from mlflow_stability.probes.block import Block
from mlflow_stability.probes.parameters.layer_layout import LayerLayout, whole_signals
from mlflow_stability.probes.parameters.layers import HeldLayers
from mlflow_stability.probes.probe import StepView
from mlflow_stability.probes.step.readback import value_on_host
from mlflow_stability.probes.tensors.gradient_norm import few_values, norm_of_row, total_norm


@dataclass(frozen=True, slots=True)
class Joined:
    """What was measured in one capture."""

    layout: LayerLayout
    rows: Tensor
    """One column for each parameter."""
    complete: bool
    """Whether these are all parameters that are trained, so that their sum is that of the whole model."""
    place: str
    """Where signals of the whole model belong."""
    unknown: frozenset[int]
    """The columns that could not be measured."""


class PartsByOptimizer:
    """The optimizers of one capture, as they come."""

    def __init__(self) -> None:
        self._held: list[HeldLayers] = []
        self._rows: list[Tensor] = []
        self._unknown: list[int] = []
        self._view: StepView | None = None

    def add(self, view: StepView, held: HeldLayers, rows: Tensor, unknown: tuple[int, ...] = ()) -> None:
        """What was measured of one optimizer; `unknown`: the columns that could not be measured."""
        before = sum(len(each.names) for each in self._held)
        self._held.append(held)
        self._rows.append(rows)
        self._unknown.extend(before + column for column in unknown)
        self._view = view

    def take(self) -> Joined | None:
        """All of it, and begin afresh; None where there was nothing."""
        if self._view is None:
            return None
        device = next((each.device for each in self._rows if not each.is_cpu), self._rows[0].device)
        rows = [each.to(device, non_blocking=True) for each in self._rows]
        layout = self._view.layers.layout(self._held)
        joined = Joined(
            layout,
            rows[0] if len(rows) == 1 else torch.cat(rows, 1),
            all(each.complete for each in self._held),
            self._view.place,
            frozenset(self._unknown),
        )
        self.drop()
        return joined

    def drop(self) -> None:
        """Forget what came so far."""
        self._held, self._rows, self._unknown, self._view = [], [], [], None


class WholeNorms:
    """Norms over all parameters, from those of each optimizer of one capture: a few numbers however many tensors.

    What lies on the host is finished there; from a device go the norms alone.
    """

    def __init__(self) -> None:
        self._norms: list[float | Tensor] = []
        self._each = 0
        self._place = ""
        self._complete = True

    def add(self, view: StepView, held: HeldLayers, *norms: float | Tensor) -> None:
        """Norms of one optimizer's parameters, the same number of them each time."""
        self._norms += norms
        self._each, self._place = len(norms), view.place
        self._complete = self._complete and held.complete

    def block(
        self, quantities: tuple[str, ...], values_of: Callable[..., Sequence[float]], has_others: bool = False
    ) -> Sequence[Block]:
        """What `values_of` makes of the norms of all optimizers together; nothing where they are not the whole."""
        norms, each, complete = self._norms, self._each, self._complete and not has_others
        signals = whole_signals(quantities, self._place)
        self.drop()
        if not norms or not complete:
            return ()

        def on_host(numbers: Sequence[float]) -> Sequence[float]:
            return values_of(*[root_of_squares(numbers[at::each]) for at in range(each)])

        far = next((one for one in norms if isinstance(one, Tensor)), None)
        if far is None:
            return [Block(signals, tuple(on_host(cast(list[float], norms))))]
        row = [one if isinstance(one, Tensor) else far.new_full((), one) for one in norms]
        return [Block(signals, torch.stack([one.to(far, non_blocking=True) for one in row]), on_host)]

    def drop(self) -> None:
        """Forget what came so far."""
        self._norms, self._complete = [], True


def on_host_if_there(scalar: Tensor) -> float | Tensor:
    """A scalar as a number, unless a device would have to be waited for."""
    value = value_on_host(scalar)
    return scalar if value is None else value


def whole_norm(tensors: Sequence[Tensor]) -> float | Tensor:
    """The L2 norm of all: a number where they lie on the host, else a scalar on the device."""
    norm = total_norm(tensors)
    return 0.0 if norm is None else on_host_if_there(norm)


@dataclass(slots=True)
class Weights:
    """The weights that an optimizer trains, right before its step."""

    norm: float | Tensor
    row: Tensor | None
    """A copy of them side by side, where they are few."""


def weights_of(view: StepView, parameters: Sequence[Tensor]) -> Weights:
    """These weights, which are all that the optimizer trains; several probes ask for them, and they are taken once."""
    layers, key = view.layers, (id(view.optimizer), view.step)
    if layers.weights is None or layers.weights[0] != key:
        with torch.no_grad():
            row = few_values(parameters)
            norm = whole_norm(parameters) if row is None else on_host_if_there(norm_of_row(row))
        layers.weights = key, Weights(norm, row)
    weights: Weights = layers.weights[1]
    return weights


def ratio(norm: float, weights: float) -> float:
    """A norm beside that of the weights; NaN where these are all zero."""
    return norm / weights if weights > 0 else nan


def root_of_squares(norms: Sequence[float]) -> float:
    """The norm of what has these norms; infinity beside NaN is NaN."""
    return norms[0] if len(norms) == 1 else nan if any(map(isnan, norms)) else hypot(*norms)
