"""Joins what a probe measured for each optimizer of a cycle.

In: for each optimizer, rows with a column for each parameter. Out: the rows of all of them side by side, on one device.
Promised: a layer whose parameters are shared out among optimizers, as with Muon and AdamW, is one layer again.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mlflow_stability.probes.parameters.layer_layout import LayerLayout
from mlflow_stability.probes.parameters.layers import HeldLayers
from mlflow_stability.probes.probe import StepView


@dataclass(frozen=True, slots=True)
class Joined:
    """What was measured in one cycle."""

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
    """The optimizers of one cycle, as they come."""

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
