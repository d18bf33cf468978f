"""Samples of module outputs, and the numbers of all modules that are made of them.

A module's class says where the units of its output lie, and whether they can be dead or saturated. A sample is a copy
of at most `quota` values; extremes and units cover all values, of outputs beyond 16 million evenly spaced examples.
NaN stands for what a module does not have. Guarantees: the same positions each time, no random numbers; a fixed number
of kernels for all modules whose samples are alike; no device is waited for.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from math import gcd
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import Module
from torch.nn.modules import activation, batchnorm, conv, dropout, instancenorm, loss, pooling

from mlflow_stability.probes.hooks.thread_state import is_measurable
from mlflow_stability.probes.tensor_sums import HALVES, flat_view, on_device
from mlflow_stability.vocabulary.measured.signal_type import SignalType, signals

SIGNALS = signals(
    SignalType("activation_mean", "mean of what each module puts out; every `layers_every_n_steps`, as those below"),
    SignalType("activation_std", "standard deviation of what each module puts out"),
    SignalType("activation_min", "least value that each module puts out", combined="min"),
    SignalType("activation_max", "largest value that each module puts out", combined="max"),
    SignalType("activation_rms", "root mean square of what each module puts out"),
    SignalType("activation_kurtosis", "kurtosis of what each module puts out"),
    SignalType("activation_nonfinite", "share of values that are not finite"),
    SignalType(
        "activation_saturation",
        "share of values at the ends of a tanh or sigmoid; its mean and largest are metrics, too",
        summary=("mean", "max"),
    ),
    SignalType(
        "activation_dead",
        "share of units that are never active in the batch; its mean and largest are metrics, too",
        summary=("mean", "max"),
    ),
    SignalType("activation_dormant", "share of units that are hardly active: a fortieth of their layer's mean"),
    topic="activations",
    interval="forward pass",
    left_out="nan",
)

TANH_SATURATED = 0.999  # its slope there is a five-hundredth of that in the middle
SIGMOID_SATURATED = 0.001  # distance from 0 or 1
_SHARES_OF_ONE = (activation.Softmax, activation.Softmax2d, activation.LogSoftmax, activation.Softmin)
_NOTHING_NEW = (dropout._DropoutNd, nn.Identity, nn.Flatten, nn.Unflatten, loss._Loss)
_CHANNELS_SECOND = (batchnorm._BatchNorm, instancenorm._InstanceNorm, nn.GroupNorm)
_UNITS_LAST = (nn.Linear, nn.Bilinear, nn.LayerNorm, nn.RMSNorm, nn.RNNBase, nn.MultiheadAttention, nn.Embedding)
_POOLS = (pooling._MaxPoolNd, pooling._AvgPoolNd, pooling._AdaptiveMaxPoolNd, pooling._AdaptiveAvgPoolNd)


@dataclass(frozen=True, slots=True)
class OutputKind:
    """What a module's class says about its output."""

    axis: int | None = None  # dimension of the units; None: that of the module before, or the usual one
    has_units: bool = False  # its units may be inactive
    rectifies: bool = False  # inactive units are zero
    may_rectify: bool = False
    """The values show whether it rectifies: modules of a script's own, and those that keep zeros."""
    low: float = -math.inf  # values at or below are saturated
    high: float = math.inf  # values at or above are saturated

    @property
    def saturates(self) -> bool:
        return math.isfinite(self.low) or math.isfinite(self.high)


def nature_of(module: Module) -> OutputKind | None:
    """Return what the class of a module says about its output, or None if the output is not measured."""
    if isinstance(module, _NOTHING_NEW):
        return None
    own = not type(module).__module__.startswith("torch.")
    if isinstance(module, conv._ConvNd):
        return OutputKind(-1 - len(module.kernel_size), own, may_rectify=own)
    if isinstance(module, _POOLS):
        name = next(cls.__name__ for cls in type(module).__mro__ if cls.__module__.startswith("torch."))
        return OutputKind(-1 - int(name[-2]), True, may_rectify=True)
    if isinstance(module, _CHANNELS_SECOND):
        return OutputKind(1, own, may_rectify=own)
    if isinstance(module, (*_UNITS_LAST, *_SHARES_OF_ONE)):
        return OutputKind(-1, own, may_rectify=own)
    return _of_activation(module) or OutputKind(
        None, own or type(module).__module__ == activation.__name__, may_rectify=own
    )


def _of_activation(module: Module) -> OutputKind | None:
    match module:
        case nn.ReLU6():
            return OutputKind(has_units=True, rectifies=True, high=6.0)
        case nn.ReLU():
            return OutputKind(has_units=True, rectifies=True)
        case nn.Tanh():
            return OutputKind(has_units=True, low=-TANH_SATURATED, high=TANH_SATURATED)
        case nn.Sigmoid():
            return OutputKind(has_units=True, low=SIGMOID_SATURATED, high=1 - SIGMOID_SATURATED)
        case nn.Hardsigmoid():
            return OutputKind(has_units=True, low=0.0, high=1.0)
        case nn.Hardtanh():
            return OutputKind(has_units=True, low=module.min_val, high=module.max_val)
        case _:
            return None


MAX_VALUES = 2**24  # of larger outputs a part is measured
MIN_ROWS = 16  # examples, or places in them: in fewer, a unit that is rarely active would look dead
MIN_UNITS = 2
MAX_OUTPUTS = 8  # items of a tuple that are searched for a tensor


@dataclass(frozen=True, slots=True)
class ActivationSample:
    values: Tensor  # row in single precision
    ends: Tensor  # least and largest value
    units: Tensor | None  # sum of the absolute values of each unit; None without units, or with too few examples


def sample_of(output: Tensor, nature: OutputKind, axis: int | None, quota: int) -> ActivationSample:
    thinned = _thinned(output, axis)
    ends = torch.stack(torch.aminmax(thinned))
    units = None
    if nature.has_units and axis is not None and thinned.size(axis) >= MIN_UNITS:
        others = [index for index in range(thinned.dim()) if index != axis]
        if thinned.numel() // thinned.size(axis) >= MIN_ROWS:
            wide = torch.float32 if thinned.dtype in HALVES else None
            units = torch.linalg.vector_norm(thinned, 1, others, dtype=wide).to(torch.float32)
    flat = flat_view(output)
    stride = -(-output.numel() // quota)
    length = output.numel() // output.size(0) if output.dim() else 1
    while stride > 1 and gcd(stride, length) > 1:
        stride += 1
    return ActivationSample(flat[::stride].to(torch.float32, copy=True), ends.to(torch.float32), units)


def output_tensor(output: Any) -> Tensor | None:
    """Return the first tensor of numbers in an output, at most one level deep."""
    if isinstance(output, Tensor):
        return output if is_measurable(output) else None
    parts: Iterable[Any] = output.values() if isinstance(output, Mapping) else ()
    if isinstance(output, tuple | list):
        parts = output
    return next((part for part in islice(parts, MAX_OUTPUTS) if is_measurable(part)), None)


def sample_of_output(
    output: Any, nature: OutputKind, axes: dict[torch.Size, int], quota: int
) -> ActivationSample | None:
    """Return a sample of a module's output, or None if it has no floating-point tensor.

    `axes` are the dimensions of units by shape, and are updated.
    """
    tensor = output_tensor(output)
    if tensor is None or not tensor.is_floating_point():
        return None
    axis = axis_of(tensor, nature, axes)
    if axis is not None and nature.axis is not None:
        axes[tensor.shape] = axis
    return sample_of(tensor, nature, axis, quota)


def axis_of(output: Tensor, nature: OutputKind, before: Mapping[torch.Size, int]) -> int | None:
    """Return the dimension of the units, from the front; `before` is that of earlier outputs by shape."""
    dimensions = output.dim()
    if dimensions < 2:
        return None
    axis = nature.axis
    if axis is None:
        axis = before.get(output.shape, 1 if dimensions > 3 else -1)
    if axis < 0:
        axis += dimensions
    return axis if 0 <= axis < dimensions else None


def _thinned(output: Tensor, axis: int | None) -> Tensor:
    if output.numel() <= MAX_VALUES or output.dim() == 0:
        return output
    along = 1 if axis == 0 and output.dim() > 1 else 0
    places = [slice(None)] * output.dim()
    places[along] = slice(None, None, -(-output.numel() // MAX_VALUES))
    return output[tuple(places)]


QUANTITIES = (
    *("activation_mean", "activation_std", "activation_min", "activation_max", "activation_rms"),
    *("activation_kurtosis", "activation_nonfinite", "activation_saturation", "activation_dead", "activation_dormant"),
)
ALWAYS = 7  # the first quantities, which every module has
DORMANT_BELOW = 0.025  # mean activity of a unit as a share of that of its layer (arXiv:2302.12902)
MIN_ZEROS_OF_RECTIFIER = 0.05  # share of zeros of an output whose least value is 0
_MIN_VARIANCE = 1e-12  # of shares of the largest value: less is rounding in single precision


def statistics_of(samples: Sequence[ActivationSample], natures: Sequence[OutputKind]) -> Tensor:
    device = samples[0].values.device
    limits = on_device([edge for nature in natures for edge in (nature.low, nature.high)], device, torch.float32).view(
        -1, 2
    )
    rectifies = on_device([float(nature.rectifies) for nature in natures], device, torch.float32) > 0
    ends = torch.stack([sample.ends for sample in samples])
    values = ends.new_full((len(samples), 7), torch.nan)
    for index, matrix in _alike([sample.values for sample in samples]):
        values.index_copy_(0, index, _of_values(matrix, limits.index_select(0, index)))
    units = ends.new_full((len(samples), 3), torch.nan)
    for index, matrix in _alike([sample.units for sample in samples]):
        units.index_copy_(0, index, _of_units(matrix))
    mean, deviation, rms, kurtosis, pinned, zeros, lost = values.unbind(1)
    dead, dormant, broken = units.unbind(1)
    low, high = ends.unbind(1)
    rectified = rectifies | ((low == 0) & (zeros >= MIN_ZEROS_OF_RECTIFIER))
    dead = torch.where(rectified, dead, torch.nan)
    seen = (~torch.isfinite(ends)).any(1).to(lost.dtype)  # the sample may have missed all of them
    lost = torch.fmax(torch.fmax(lost, broken), seen)
    return torch.stack((mean, deviation, low, high, rms, kurtosis, lost, pinned, dead, dormant), 1)


def _alike(rows: Sequence[Tensor | None]) -> Iterator[tuple[Tensor, Tensor]]:
    by_length: dict[int, list[int]] = {}
    for number, row in enumerate(rows):
        if row is not None:
            by_length.setdefault(len(row), []).append(number)
    for numbers in by_length.values():
        matrix = torch.stack([row for number in numbers if (row := rows[number]) is not None])
        yield on_device(numbers, matrix.device, torch.long), matrix


# Mean, deviation, root of the mean square, kurtosis; shares that are saturated or zero; number of non-finite values.
def _of_values(matrix: Tensor, limits: Tensor) -> Tensor:
    there = torch.isfinite(matrix)
    count = there.sum(1, keepdim=True).to(matrix.dtype)
    finite = torch.where(there, matrix, 0.0)
    # Fourth powers overflow single precision: they are taken of shares of the largest value.
    largest = finite.abs().amax(1, keepdim=True)
    shares = finite / torch.where(largest > 0, largest, 1.0)
    mean = shares.sum(1, keepdim=True) / count
    around = torch.where(there, shares - mean, 0.0).square_()
    variance = around.sum(1, keepdim=True) / count
    fourth = around.square_().sum(1, keepdim=True) / count
    rms = (shares.square().sum(1, keepdim=True) / count).sqrt_()
    kurtosis = torch.where(variance > _MIN_VARIANCE, fourth / variance.square(), torch.nan)
    pinned = ((matrix <= limits[:, :1]) | (matrix >= limits[:, 1:])).to(matrix.dtype).mean(1, keepdim=True)
    zeros = (matrix == 0).to(matrix.dtype).mean(1, keepdim=True)
    lost = matrix.size(1) - count
    deviation = variance.sqrt() * largest
    return torch.cat((mean * largest, deviation, rms * largest, kurtosis, pinned, zeros, lost), 1)


# Shares of dead and dormant units; number of units with non-finite values.
def _of_units(sums: Tensor) -> Tensor:
    finite = torch.isfinite(sums)
    activity = torch.where(finite, sums, 0.0)
    mean = activity.sum(1, keepdim=True) / finite.sum(1, keepdim=True)
    dead = (sums == 0).to(sums.dtype).mean(1)
    dormant = (finite & (activity <= DORMANT_BELOW * mean)).to(sums.dtype).mean(1)
    return torch.stack((dead, dormant, (~finite).sum(1).to(sums.dtype)), 1)
