"""Measures how gradients and weights are spread in each layer: mean, deviation, extremes, percentiles, histogram.

In: gates. Out: tables. Promised: ``abs_max`` and ``zeros`` are of all values, the rest of a sample that takes the same
places each time; a table comes to the host as one row of numbers; a thousand layers cost no more kernels than ten.

Where two optimizers share the parameters of a layer, as Muon and AdamW do, the layer is told by the one that holds
more of it: a weight, and not its bias.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mlflow_stability.probes.block import Block
from mlflow_stability.probes.dense_gradients import dense_gradients
from mlflow_stability.probes.device_numbers import on_device
from mlflow_stability.probes.gate_view import GateView
from mlflow_stability.probes.layer_layout import LayerLayout
from mlflow_stability.probes.layer_samples import MOST_TOGETHER, LayerSamples
from mlflow_stability.probes.layers import HeldLayers, Layers
from mlflow_stability.probes.probe import next_multiple
from mlflow_stability.probes.sample_statistics import sample_statistics
from mlflow_stability.probes.tensor_sums import largest_of, nonzeros_of, scalars
from mlflow_stability.vocabulary.layer_table import LayerTable, layer_table_of

MOST_OPTIMIZERS = 32


@dataclass(frozen=True, slots=True)
class Table:
    """A table whose numbers are still on their device."""

    step: int
    what: str
    """``gradient`` or ``weight``."""
    layers: tuple[str, ...]
    values: Tensor
    """One row: the numbers of the first layer, then those of the next."""

    def read(self, values: Sequence[float], attempt: int) -> LayerTable:
        """The table, from the numbers as they came to the host."""
        return layer_table_of(self.step, attempt, self.what, self.layers, values)


@dataclass(frozen=True, slots=True)
class _Part:
    """What was measured of one optimizer: for gradients and weights a row of numbers for each of its layers."""

    held: HeldLayers
    rows: dict[str, Tensor]


class LayerStatistics:
    """The tables of gradients and weights."""

    part = "layer statistics"

    def __init__(self, every: int = 100, histograms_every: int = 1000, most_together: int = MOST_TOGETHER) -> None:
        self.every = every
        """Every how many steps mean, deviation and extremes are measured, ..."""
        self.histograms_every = histograms_every
        """... and every how many steps percentiles and histograms too."""
        self.most_together = most_together
        """How many values all samples together may have; sorting them takes 32 bytes each for a moment."""
        self._samples: dict[HeldLayers, LayerSamples] = {}
        self._parts: list[_Part] = []
        self._layers: Layers | None = None

    def due(self, step: int) -> bool:
        """Whether this cycle is to be measured."""
        return step % self.every == 0 or step % self.histograms_every == 0

    def next_due(self, step: int) -> int:
        """The next step that is due."""
        return next_multiple(step, self.every, self.histograms_every)

    def at_gate(self, view: GateView) -> None:
        """Describe one optimizer's gradients and weights."""
        held = view.layers.held(view.optimizer, view.step)
        parameters = held.parameters(view.optimizer)
        if not parameters:
            return
        gradients, _ = dense_gradients(parameters)
        layout = view.layers.layout([held])
        full = view.step % self.histograms_every == 0
        rows: dict[str, Tensor] = {}
        with torch.no_grad():
            for what, tensors, divisor in (("gradient", gradients, view.unscale), ("weight", parameters, None)):
                found = _describe(tensors, layout, self._samples_of(held, layout, parameters), divisor, full)
                if found is not None:
                    rows[what] = found
        self._parts.append(_Part(held, rows))
        self._layers = view.layers

    def after_step(self, view: GateView) -> None:
        """All is measured at the gate."""

    def forget(self) -> None:
        """The cycle was interrupted half-way: let go of what was measured in it."""
        self._parts, self._layers = [], None

    def blocks(self, _step: int) -> Sequence[Block]:
        """There are no series here: `tables` has it all."""
        return ()

    def tables(self, step: int) -> list[Table]:
        """The tables of the cycle that is over."""
        parts, self._parts = self._parts, []
        layers, self._layers = self._layers, None
        if layers is None:
            return []
        tables = []
        for what in ("gradient", "weight"):
            some = [each for each in parts if what in each.rows]
            if some:
                names, rows = _merged(some, what, layers)
                tables.append(Table(step, what, names, rows.flatten()))
        return tables

    def _samples_of(self, held: HeldLayers, layout: LayerLayout, parameters: Sequence[Tensor]) -> LayerSamples:
        if held not in self._samples:
            if len(self._samples) >= MOST_OPTIMIZERS:
                self._samples.clear()
            shapes = [tuple(each.shape) for each in parameters]
            count = len(layout.names)
            self._samples[held] = LayerSamples(shapes, layout.of_parameter, count, most_together=self.most_together)
        return self._samples[held]


def _describe(
    tensors: Sequence[Tensor | None], layout: LayerLayout, samples: LayerSamples, divisor: Tensor | None, full: bool
) -> Tensor | None:
    """For each layer, in the order of the layout, all the numbers of a table or only the statistics."""
    largest, nonzeros = scalars(tensors, largest_of), scalars(tensors, nonzeros_of)
    if largest is None or nonzeros is None:
        return None
    device = largest.device
    sizes = on_device([0 if each is None else each.numel() for each in tensors], device, largest.dtype)
    together = layout.sums(torch.stack((nonzeros, sizes)))
    zeros = 1.0 - together[0] / together[1]
    peaks = layout.largest(largest)
    columns: list[Tensor] = []
    for matrix in samples.take(tensors, device):
        scaled = matrix if divisor is None else matrix / divisor.to(matrix, non_blocking=True)
        columns.append(sample_statistics(scaled, full))
    back = sorted(range(len(samples.order)), key=lambda at: samples.order[at])
    sampled = torch.cat(columns).index_select(0, on_device(back, device, torch.long)).to(largest.dtype)
    if divisor is not None:
        peaks = peaks / divisor.to(peaks, non_blocking=True)
    return torch.cat((sampled[:, :2], torch.stack((peaks, zeros), 1), sampled[:, 2:]), 1)


def _merged(parts: Sequence[_Part], what: str, layers: Layers) -> tuple[tuple[str, ...], Tensor]:
    """The layers of all optimizers, in the order of the model, each once."""
    layouts = [layers.layout([each.held]) for each in parts]
    if len(parts) == 1:
        return layouts[0].names, parts[0].rows[what]
    best: dict[str, tuple[int, int]] = {}
    before = 0
    for part, layout in zip(parts, layouts, strict=True):
        sizes = part.held.layer_sizes()
        for row, name in enumerate(layout.names, before):
            if sizes[name] > best.get(name, (-1, 0))[0]:
                best[name] = sizes[name], row
        before += len(layout.names)
    names = layers.layout([each.held for each in parts]).names
    device = next((each.rows[what].device for each in parts if not each.rows[what].is_cpu), torch.device("cpu"))
    rows = torch.cat([each.rows[what].to(device, non_blocking=True) for each in parts])
    return names, rows.index_select(0, on_device([best[name][1] for name in names], device, torch.long))
