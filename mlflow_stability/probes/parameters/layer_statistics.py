"""Distributions of gradients and weights by layer: mean, deviation, extremes, percentiles, histogram.

Guarantees: ``abs_max`` and ``zeros`` cover all values, the rest a sample at the same positions each time, at a distance
that shares no divisor with the row length, without random numbers; a fixed number of kernels for any number of layers.
Where two optimizers share the parameters of a layer, as Muon and AdamW do, the one that holds more of it reports it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd

import torch
from torch import Tensor

from mlflow_stability.probes.gradient_norm import dense_gradients
from mlflow_stability.probes.hooks import torch_api
from mlflow_stability.probes.parameters.layers import HeldLayers, LayerLayout, Layers
from mlflow_stability.probes.probe import PeriodicProbe, StepView
from mlflow_stability.probes.tensor_sums import flat_view, largest_of, nonzeros_of, on_device, scalars
from mlflow_stability.vocabulary.measured.layer_arrays import BINS, LEVELS, LayerTable, layer_table_from
from mlflow_stability.vocabulary.measured.signal_type import SignalType, signals

SIGNALS = signals(
    SignalType("gradient_mean", "mean of the gradients of each layer", topic="gradients"),
    SignalType("gradient_std", "standard deviation of the gradients of each layer", topic="gradients"),
    SignalType(
        "gradient_abs_max", "largest absolute value of the gradients of each layer", topic="gradients", combined="max"
    ),
    SignalType("gradient_zeros", "share of zeros of the gradients of each layer", topic="gradients"),
    SignalType("weight_mean", "mean of the weights of each layer", topic="optimizer"),
    SignalType("weight_std", "standard deviation of the weights of each layer", topic="optimizer"),
    SignalType(
        "weight_abs_max", "largest absolute value of the weights of each layer", topic="optimizer", combined="max"
    ),
    SignalType("weight_zeros", "share of zeros of the weights of each layer", topic="optimizer"),
    interval="by layer",
)

MAX_SAMPLE = 16_384  # values of a layer
MAX_SAMPLES_TOGETHER = 2**20


@dataclass(frozen=True, slots=True)
class _Sampled:
    stride: int
    begin: int
    end: int


class LayerSamples:
    """Plan of a sample: matrices of layers, each with its values in a row."""

    def __init__(
        self,
        shapes: Sequence[Sequence[int]],
        of_layer: Sequence[int],
        layers: int,
        most: int = MAX_SAMPLE,
        most_together: int = MAX_SAMPLES_TOGETHER,
    ) -> None:
        quota = max(min(most, most_together // max(layers, 1)), 1)
        columns: list[list[int]] = [[] for _ in range(layers)]
        for column, layer in enumerate(of_layer):
            columns[layer].append(column)
        sizes = [torch.Size(shape).numel() for shape in shapes]
        strides = [0] * len(sizes)
        taken = [0] * layers
        for layer, members in enumerate(columns):
            apart = -(-sum(sizes[column] for column in members) // quota)
            for column in members:
                strides[column] = _coprime(apart, shapes[column][-1] if shapes[column] else 1)
                taken[layer] += -(-sizes[column] // strides[column])
        widths = [1 << max(count - 1, 0).bit_length() for count in taken]
        # Layers in the order of the rows of all matrices.
        self.order = tuple(sorted(range(layers), key=lambda layer: (widths[layer], layer)))
        self.shapes: list[tuple[int, int]] = []  # rows and columns of each matrix
        self._places: list[_Sampled] = [_Sampled(1, 0, 0)] * len(sizes)
        at = 0
        for layer in self.order:
            if not self.shapes or self.shapes[-1][1] != widths[layer]:
                self.shapes.append((0, widths[layer]))
            self.shapes[-1] = (self.shapes[-1][0] + 1, widths[layer])
            begin = at
            for column in columns[layer]:
                end = begin + -(-sizes[column] // strides[column])
                self._places[column] = _Sampled(strides[column], begin, end)
                begin = end
            at += widths[layer]
        self._length = at

    def take(self, tensors: Sequence[Tensor | None], device: torch.device) -> list[Tensor]:
        """Return the matrices in single precision, with NaN for None; of complex numbers their real parts."""
        with torch.no_grad():
            whole = torch.full((self._length,), torch.nan, dtype=torch.float32, device=device)
            targets: list[Tensor] = []
            sources: list[Tensor] = []
            for place, tensor in zip(self._places, tensors, strict=True):
                if tensor is not None:
                    targets.append(whole[place.begin : place.end])
                    flat = flat_view(tensor.real if tensor.is_complex() else tensor)
                    sources.append(flat if place.stride == 1 else flat[:: place.stride])
            if targets:
                torch_api.foreach_copy_(targets, sources, non_blocking=True)
            parts = torch.split(whole, [rows * width for rows, width in self.shapes])
            return [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]


# The first distance from this one on that shares no divisor with the length of a row.
def _coprime(apart: int, length: int) -> int:
    while gcd(apart, length) > 1:
        apart += 1
    return apart


MARGIN = 0.5  # of a histogram beyond p1 and p99, as a share of their distance; within the values
FIRST, LAST = LEVELS.index(0.01), LEVELS.index(0.99)


def sample_statistics(sample: Tensor, full: bool) -> Tensor:
    """Return columns for mean and deviation; if `full`, percentiles, the ends of the histogram and its bins."""
    with torch.no_grad():
        few = _mean_and_deviation(sample)
        return torch.cat((few, _percentiles_and_histogram(sample)), 1) if full else few


def _mean_and_deviation(sample: Tensor) -> Tensor:
    there = sample == sample
    count = there.sum(1, keepdim=True).to(sample.dtype)
    mean = torch.where(there, sample, 0.0).sum(1, keepdim=True) / count
    around = torch.where(there, sample - mean, 0.0).square_().sum(1, keepdim=True) / count
    return torch.cat((mean, around.sqrt_()), 1)


def _percentiles_and_histogram(sample: Tensor) -> Tensor:
    count = (sample == sample).sum(1, keepdim=True)
    # Sorting puts NaN last; as infinity they stay there and can be compared.
    ordered = torch.nan_to_num(sample.sort(1).values, nan=torch.inf, posinf=torch.inf, neginf=-torch.inf)
    marks = _percentiles(ordered, count)
    first, last = marks[:, FIRST : FIRST + 1], marks[:, LAST : LAST + 1]
    reach = MARGIN * (last - first)
    low, high = torch.maximum(marks[:, :1], first - reach), torch.minimum(marks[:, -1:], last + reach)
    share = torch.linspace(0.0, 1.0, BINS + 1, device=sample.device, dtype=sample.dtype)
    below = torch.searchsorted(ordered, low + (high - low) * share)
    below[:, 0] = 0
    below = torch.minimum(below, count).cummax(1).values  # with an infinite end, edges are not sorted
    below[:, -1:] = count
    return torch.cat((marks, low, high, below.diff(dim=1).to(sample.dtype)), 1)


# Linear interpolation between the two nearest values, as numpy's default; NaN where there is no value.
def _percentiles(ordered: Tensor, count: Tensor) -> Tensor:
    levels = on_device(LEVELS, ordered.device, ordered.dtype)
    places = (levels * (count - 1)).clamp_min_(0.0)
    begin = places.floor()
    left = ordered.gather(1, begin.long())
    right = ordered.gather(1, places.ceil().long())
    between = torch.where(left == right, left, left + (right - left) * (places - begin))
    return torch.where(count > 0, between, torch.nan)


MAX_OPTIMIZERS = 32


@dataclass(frozen=True, slots=True)
class Table:
    """Table whose numbers are still on their device."""

    step: int
    what: str  # ``gradient`` or ``weight``
    layers: tuple[str, ...]
    values: Tensor  # one row: all numbers of the first layer, then those of the next

    def read(self, values: Sequence[float], attempt: int) -> LayerTable:
        return layer_table_from(self.step, attempt, self.what, self.layers, values)


@dataclass(frozen=True, slots=True)
class _Part:
    held: HeldLayers
    rows: dict[str, Tensor]


class LayerStatistics(PeriodicProbe):
    part = "layer statistics"

    def __init__(
        self, every: int = 100, histograms_every: int = 1000, most_together: int = MAX_SAMPLES_TOGETHER
    ) -> None:
        super().__init__(every, histograms_every)
        self.histograms_every = histograms_every  # steps between percentiles and histograms
        self.most_together = most_together  # values of all samples; sorting takes 32 bytes for each
        self._samples: dict[HeldLayers, LayerSamples] = {}
        self._parts: list[_Part] = []
        self._layers: Layers | None = None

    def before_step(self, view: StepView) -> None:
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
                if held not in self._samples:
                    if len(self._samples) >= MAX_OPTIMIZERS:
                        self._samples.clear()
                    shapes = [tuple(parameter.shape) for parameter in parameters]
                    count = len(layout.names)
                    self._samples[held] = LayerSamples(
                        shapes, layout.of_parameter, count, most_together=self.most_together
                    )
                table = _describe(tensors, layout, self._samples[held], divisor, full)
                if table is not None:
                    rows[what] = table
        self._parts.append(_Part(held, rows))
        self._layers = view.layers

    def forget(self) -> None:
        self._parts, self._layers = [], None

    def tables(self, step: int) -> list[Table]:
        parts, self._parts = self._parts, []
        layers, self._layers = self._layers, None
        if layers is None:
            return []
        tables = []
        for what in ("gradient", "weight"):
            some = [part for part in parts if what in part.rows]
            if some:
                names, rows = _merged(some, what, layers)
                tables.append(Table(step, what, names, rows.flatten()))
        return tables


def _describe(
    tensors: Sequence[Tensor | None], layout: LayerLayout, samples: LayerSamples, divisor: Tensor | None, full: bool
) -> Tensor | None:
    largest, nonzeros = scalars(tensors, largest_of), scalars(tensors, nonzeros_of)
    if largest is None or nonzeros is None:
        return None
    device = largest.device
    sizes = on_device([0 if tensor is None else tensor.numel() for tensor in tensors], device, largest.dtype)
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
    layouts = [layers.layout([part.held]) for part in parts]
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
    names = layers.layout([part.held for part in parts]).names
    device = next((part.rows[what].device for part in parts if not part.rows[what].is_cpu), torch.device("cpu"))
    rows = torch.cat([part.rows[what].to(device, non_blocking=True) for part in parts])
    return names, rows.index_select(0, on_device([best[name][1] for name in names], device, torch.long))
