"""Describes each row of a matrix: mean, deviation, and where asked for percentiles and a histogram.

In: a matrix whose rows may hold NaN, which count as absent. Out: a matrix with the same rows and as many columns as
there are numbers. Promised: a fixed number of kernels, however many rows; nothing is waited for.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mlflow_stability.probes.device_numbers import on_device
from mlflow_stability.vocabulary.layer_table import BINS, LEVELS

MARGIN = 0.5
"""How far a histogram reaches beyond p1 and p99, in parts of their distance; it never reaches beyond the values."""
FIRST, LAST = LEVELS.index(0.01), LEVELS.index(0.99)


def sample_statistics(sample: Tensor, full: bool) -> Tensor:
    """Two columns for mean and deviation; if `full`, the percentiles, the ends of the histogram and its bins."""
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
    # Sorting puts NaN last; as infinities they stay there and can be compared.
    ordered = torch.nan_to_num(sample.sort(1).values, nan=torch.inf, posinf=torch.inf, neginf=-torch.inf)
    marks = _percentiles(ordered, count)
    first, last = marks[:, FIRST : FIRST + 1], marks[:, LAST : LAST + 1]
    reach = MARGIN * (last - first)
    low, high = torch.maximum(marks[:, :1], first - reach), torch.minimum(marks[:, -1:], last + reach)
    share = torch.linspace(0.0, 1.0, BINS + 1, device=sample.device, dtype=sample.dtype)
    below = torch.searchsorted(ordered, low + (high - low) * share)
    below[:, 0] = 0
    below = torch.minimum(below, count).cummax(1).values  # where an end is infinite, edges are in no order
    below[:, -1:] = count
    return torch.cat((marks, low, high, below.diff(dim=1).to(sample.dtype)), 1)


def _percentiles(ordered: Tensor, count: Tensor) -> Tensor:
    """Between the two nearest values on a straight line, as numpy's default is; NaN where there is no value."""
    levels = on_device(LEVELS, ordered.device, ordered.dtype)
    places = (levels * (count - 1)).clamp_min_(0.0)
    begin = places.floor()
    left = ordered.gather(1, begin.long())
    right = ordered.gather(1, places.ceil().long())
    found = torch.where(left == right, left, left + (right - left) * (places - begin))
    return torch.where(count > 0, found, torch.nan)
