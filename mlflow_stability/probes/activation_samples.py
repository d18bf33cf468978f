"""Takes from the output of a module what its statistics are made of, before anything can change it.

In: a tensor in the middle of a forward pass. Out: a sample of its values, its ends, and how active each of its units
was. Promised: no dice: the same places each time; a sample has at most `quota` values and is a copy; ends and units are
of all values of the batch, of outputs beyond 16 million values of evenly spread examples of it; a handful of kernels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd

import torch
from torch import Tensor

from mlflow_stability.probes.activation_kinds import Nature
from mlflow_stability.probes.tensor_sums import HALVES, flat_view

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


def sample_of(output: Tensor, nature: Nature, axis: int | None, quota: int) -> ActivationSample:
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


def axis_of(output: Tensor, nature: Nature, before: Mapping[torch.Size, int]) -> int | None:
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
