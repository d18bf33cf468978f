"""Samples of module outputs, and what a module's class says about its output.

In: a tensor during a forward pass, and its module. Out: a sample of its values, its extremes, the activity of each
unit; an `OutputKind` (where units lie, whether they can die or saturate), None where a module's output says nothing.
Guarantees: the same positions each time, no random numbers; a sample is a copy of at most `quota` values; extremes
and units cover all values, of outputs beyond 16 million values evenly spaced examples; few kernels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd

import torch
from torch import Tensor, nn
from torch.nn import Module
from torch.nn.modules import activation, batchnorm, conv, dropout, instancenorm, loss, pooling

from mlflow_stability.probes.tensors.tensor_sums import HALVES, flat_view

NEAR_ONE = 0.999
"""Where tanh is pinned: its slope is a five-hundredth of that in the middle."""
NEAR_NONE = 0.001
"""Where a sigmoid is: so near to 0 or 1."""
_SHARES_OF_ONE = (activation.Softmax, activation.Softmax2d, activation.LogSoftmax, activation.Softmin)
_NOTHING_NEW = (dropout._DropoutNd, nn.Identity, nn.Flatten, nn.Unflatten, loss._Loss)
_CHANNELS_SECOND = (batchnorm._BatchNorm, instancenorm._InstanceNorm, nn.GroupNorm)
_UNITS_LAST = (nn.Linear, nn.Bilinear, nn.LayerNorm, nn.RMSNorm, nn.RNNBase, nn.MultiheadAttention, nn.Embedding)
_POOLS = (pooling._MaxPoolNd, pooling._AvgPoolNd, pooling._AdaptiveMaxPoolNd, pooling._AdaptiveAvgPoolNd)


@dataclass(frozen=True, slots=True)
class OutputKind:
    """What is known of a module's output before it is seen."""

    axis: int | None = None
    """Which dimension its units lie along; None: the one of the module before, or what is usual."""
    has_units: bool = False
    """Whether there are units that could be inactive: behind a nonlinearity, or where that cannot be told."""
    rectifies: bool = False
    """Whether it puts out zero for what it does not let through."""
    may_rectify: bool = False
    """Whether the values must tell: modules of a script's own, and those that keep what came in."""
    low: float = -math.inf
    """At or below which value it is saturated, ..."""
    high: float = math.inf
    """... and at or above which."""

    @property
    def saturates(self) -> bool:
        """Whether there is an end at which it can be pinned."""
        return math.isfinite(self.low) or math.isfinite(self.high)


def nature_of(module: Module) -> OutputKind | None:
    """What its class says."""
    if isinstance(module, _NOTHING_NEW):
        return None
    own = not type(module).__module__.startswith("torch.")
    if isinstance(module, conv._ConvNd):
        return OutputKind(-1 - len(module.kernel_size), own, may_rectify=own)
    if isinstance(module, _POOLS):
        return OutputKind(-1 - int(_torch_class(module)[-2]), True, may_rectify=True)
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
            return OutputKind(has_units=True, low=-NEAR_ONE, high=NEAR_ONE)
        case nn.Sigmoid():
            return OutputKind(has_units=True, low=NEAR_NONE, high=1 - NEAR_NONE)
        case nn.Hardsigmoid():
            return OutputKind(has_units=True, low=0.0, high=1.0)
        case nn.Hardtanh():
            return OutputKind(has_units=True, low=module.min_val, high=module.max_val)
        case _:
            return None


def _torch_class(module: Module) -> str:
    """The name of torch's own class that it is or is made from: ``MaxPool2d``."""
    return next(each.__name__ for each in type(module).__mro__ if each.__module__.startswith("torch."))


MOST_VALUES = 2**24
"""Outputs with more values are looked at in part."""
FEWEST_ROWS = 16
"""With fewer examples (or places in them) nothing is said of units: one that is rarely active would look dead."""
FEWEST_UNITS = 2


@dataclass(frozen=True, slots=True)
class ActivationSample:
    """What was taken from one output; everything is still on its device."""

    values: Tensor
    """A row in single precision."""
    ends: Tensor
    """Least and largest value."""
    units: Tensor | None
    """For each unit the sum of its absolute values; None where there are no units, or too few examples."""


def sample_of(output: Tensor, nature: OutputKind, axis: int | None, quota: int) -> ActivationSample:
    """Take it; `axis`: where the units are, from the front."""
    thinned = _thinned(output, axis)
    ends = torch.stack(torch.aminmax(thinned))
    units = None
    if nature.has_units and axis is not None and thinned.size(axis) >= FEWEST_UNITS:
        others = [each for each in range(thinned.dim()) if each != axis]
        if thinned.numel() // thinned.size(axis) >= FEWEST_ROWS:
            wide = torch.float32 if thinned.dtype in HALVES else None
            units = torch.linalg.vector_norm(thinned, 1, others, dtype=wide).to(torch.float32)
    flat = flat_view(output)
    stride = _stride(output, quota)
    return ActivationSample(flat[::stride].to(torch.float32, copy=True), ends.to(torch.float32), units)


def axis_of(output: Tensor, nature: OutputKind, before: Mapping[torch.Size, int]) -> int | None:
    """Where the units of an output lie, from the front; `before`: where they lay in outputs of each shape."""
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
    """Evenly spread examples of a large output; all of any other."""
    if output.numel() <= MOST_VALUES or output.dim() == 0:
        return output
    along = 1 if axis == 0 and output.dim() > 1 else 0
    places = [slice(None)] * output.dim()
    places[along] = slice(None, None, -(-output.numel() // MOST_VALUES))
    return output[tuple(places)]


def _stride(output: Tensor, quota: int) -> int:
    """The distance between two places: it shares no divisor with the length of an example, so all columns count."""
    stride = -(-output.numel() // quota)
    length = output.numel() // output.size(0) if output.dim() else 1
    while stride > 1 and gcd(stride, length) > 1:
        stride += 1
    return stride
