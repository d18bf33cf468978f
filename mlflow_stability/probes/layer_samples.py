"""Takes a sample of every layer's values into one buffer: the same places every time, and no dice.

In: tensors and the layer of each. Out: for layers of like size a matrix, one row for each, padded with NaN. Promised:
a layer has at most `most` values and all together at most `most_together`; every column of a weight is met alike, for
the distance between two places shares no divisor with the length of a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd

import torch
from torch import Tensor

from mlflow_stability.probes import torch_api
from mlflow_stability.probes.tensor_sums import flat_view

MOST = 16_384
MOST_TOGETHER = 2**20


@dataclass(frozen=True, slots=True)
class _Sampled:
    """Where the sample of one tensor is taken from, and where it goes."""

    stride: int
    begin: int
    end: int


class LayerSamples:
    """The plan of a sample."""

    def __init__(
        self,
        shapes: Sequence[Sequence[int]],
        of_layer: Sequence[int],
        layers: int,
        most: int = MOST,
        most_together: int = MOST_TOGETHER,
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
        self.order = tuple(sorted(range(layers), key=lambda layer: (widths[layer], layer)))
        """The layers, as the rows of the matrices come."""
        self.shapes: list[tuple[int, int]] = []
        """Rows and columns of each matrix."""
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
        """The matrices, in single precision; what is None leaves NaN."""
        with torch.no_grad():
            whole = torch.full((self._length,), torch.nan, dtype=torch.float32, device=device)
            targets: list[Tensor] = []
            sources: list[Tensor] = []
            for place, tensor in zip(self._places, tensors, strict=True):
                if tensor is not None:
                    targets.append(whole[place.begin : place.end])
                    flat = flat_view(tensor)
                    sources.append(flat if place.stride == 1 else flat[:: place.stride])
            if targets:
                torch_api.foreach_copy_(targets, sources, non_blocking=True)
            parts = torch.split(whole, [rows * width for rows, width in self.shapes])
            return [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]


def _coprime(apart: int, length: int) -> int:
    """The distance, or the next that shares no divisor with the length of a row."""
    while gcd(apart, length) > 1:
        apart += 1
    return apart
