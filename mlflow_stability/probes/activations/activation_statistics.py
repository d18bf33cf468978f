"""Makes the numbers of all modules out of the samples of their outputs.

In: samples, with what is known of their modules. Out: one row of numbers for each. Guarantees: a fixed number of
kernels for all modules whose samples are alike; nothing is waited for. NaN stands for what cannot be said of a module;
values that are not finite are counted and left out of the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from mlflow_stability.probes.activations.activation_samples import ActivationSample, OutputKind
from mlflow_stability.probes.tensors.tensor_sums import on_device
from mlflow_stability.vocabulary.measured import SignalType

SIGNALS = (
    SignalType(
        "activation_mean",
        "mean of what each module puts out; every `layers_every_n_steps`, as those below",
        "activations",
        interval="forward pass",
        left_out="nan",
    ),
    SignalType(
        "activation_std",
        "standard deviation of what each module puts out",
        "activations",
        interval="forward pass",
        left_out="nan",
    ),
    SignalType(
        "activation_min",
        "least value that each module puts out",
        "activations",
        combined="min",
        interval="forward pass",
        left_out="nan",
    ),
    SignalType(
        "activation_max",
        "largest value that each module puts out",
        "activations",
        combined="max",
        interval="forward pass",
        left_out="nan",
    ),
    SignalType(
        "activation_rms",
        "root mean square of what each module puts out",
        "activations",
        interval="forward pass",
        left_out="nan",
    ),
    SignalType(
        "activation_kurtosis",
        "kurtosis of what each module puts out",
        "activations",
        interval="forward pass",
        left_out="nan",
    ),
    SignalType(
        "activation_nonfinite",
        "share of values that are not finite",
        "activations",
        interval="forward pass",
        left_out="nan",
    ),
    SignalType(
        "activation_saturation",
        "share of values at the ends of a tanh or sigmoid; its mean and largest are metrics, too",
        "activations",
        summary=("mean", "max"),
        interval="forward pass",
        left_out="nan",
    ),
    SignalType(
        "activation_dead",
        "share of units that are never active in the batch; its mean and largest are metrics, too",
        "activations",
        summary=("mean", "max"),
        interval="forward pass",
        left_out="nan",
    ),
    SignalType(
        "activation_dormant",
        "share of units that are hardly active: a fortieth of their layer's mean",
        "activations",
        interval="forward pass",
        left_out="nan",
    ),
)

QUANTITIES = tuple(each.quantity for each in SIGNALS)
"""The columns: the first seven are there for every module."""
ALWAYS = 7
DORMANT_BELOW = 0.025
"""A unit is dormant whose mean activity is at most this share of that of its layer (arXiv:2302.12902)."""
MANY_ZEROS = 0.05
"""An output whose least value is 0 and that has so large a share of zeros is taken for that of a rectifier."""


def statistics_of(samples: Sequence[ActivationSample], natures: Sequence[OutputKind]) -> Tensor:
    """A row for each sample; all of them lie on one device."""
    device = samples[0].values.device
    limits = on_device([edge for each in natures for edge in (each.low, each.high)], device, torch.float32).view(-1, 2)
    rectifies = on_device([float(each.rectifies) for each in natures], device, torch.float32) > 0
    ends = torch.stack([each.ends for each in samples])
    values = ends.new_full((len(samples), 7), torch.nan)
    for index, matrix in _alike([each.values for each in samples]):
        values.index_copy_(0, index, _of_values(matrix, limits.index_select(0, index)))
    units = ends.new_full((len(samples), 3), torch.nan)
    for index, matrix in _alike([each.units for each in samples]):
        units.index_copy_(0, index, _of_units(matrix))
    mean, deviation, rms, kurtosis, pinned, zeros, lost = values.unbind(1)
    dead, dormant, broken = units.unbind(1)
    low, high = ends.unbind(1)
    rectified = rectifies | ((low == 0) & (zeros >= MANY_ZEROS))
    dead = torch.where(rectified, dead, torch.nan)
    seen = (~torch.isfinite(ends)).any(1).to(lost.dtype)  # where the sample has missed all of them
    lost = torch.fmax(torch.fmax(lost, broken), seen)
    return torch.stack((mean, deviation, low, high, rms, kurtosis, lost, pinned, dead, dormant), 1)


def _alike(rows: Sequence[Tensor | None]) -> Iterator[tuple[Tensor, Tensor]]:
    """Rows of one length as one matrix, with the numbers of them."""
    by_length: dict[int, list[int]] = {}
    for number, row in enumerate(rows):
        if row is not None:
            by_length.setdefault(len(row), []).append(number)
    for numbers in by_length.values():
        matrix = torch.stack([row for number in numbers if (row := rows[number]) is not None])
        yield on_device(numbers, matrix.device, torch.long), matrix


def _of_values(matrix: Tensor, limits: Tensor) -> Tensor:
    """Mean, deviation, root of the mean square, kurtosis; shares that are pinned or zero; how many are not finite."""
    there = torch.isfinite(matrix)
    count = there.sum(1, keepdim=True).to(matrix.dtype)
    found = torch.where(there, matrix, 0.0)
    # Fourth powers of sound values overflow single precision: they are taken of shares of the largest.
    largest = found.abs().amax(1, keepdim=True)
    shares = found / torch.where(largest > 0, largest, 1.0)
    mean = shares.sum(1, keepdim=True) / count
    around = torch.where(there, shares - mean, 0.0).square_()
    variance = around.sum(1, keepdim=True) / count
    fourth = around.square_().sum(1, keepdim=True) / count
    rms = (shares.square().sum(1, keepdim=True) / count).sqrt_()
    kurtosis = torch.where(variance > _ROUNDING, fourth / variance.square(), torch.nan)
    pinned = ((matrix <= limits[:, :1]) | (matrix >= limits[:, 1:])).to(matrix.dtype).mean(1, keepdim=True)
    zeros = (matrix == 0).to(matrix.dtype).mean(1, keepdim=True)
    lost = matrix.size(1) - count
    deviation = variance.sqrt() * largest
    return torch.cat((mean * largest, deviation, rms * largest, kurtosis, pinned, zeros, lost), 1)


def _of_units(sums: Tensor) -> Tensor:
    """Shares of units that are dead and dormant; how many put out what is not finite."""
    finite = torch.isfinite(sums)
    activity = torch.where(finite, sums, 0.0)
    mean = activity.sum(1, keepdim=True) / finite.sum(1, keepdim=True)
    dead = (sums == 0).to(sums.dtype).mean(1)
    dormant = (finite & (activity <= DORMANT_BELOW * mean)).to(sums.dtype).mean(1)
    return torch.stack((dead, dormant, (~finite).sum(1).to(sums.dtype)), 1)


_ROUNDING = 1e-12
"""Values that differ by less than a millionth of the largest are all alike in single precision."""
