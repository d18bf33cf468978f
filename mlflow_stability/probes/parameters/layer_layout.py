"""The layers of one capture: their names in the order of the model, and which parameter counts for which.

In: the layer of each parameter, and rows with a column for each parameter. Out: sums by layer, and blocks of them.
Guarantees: a handful of kernels for any number of layers; the signals of a block are the same objects every time.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache

import torch
from torch import Tensor

from mlflow_stability.probes.block import Block
from mlflow_stability.probes.tensors.device_numbers import on_device
from mlflow_stability.vocabulary.measured import Signal

MOST_SIGNAL_SETS = 64


class LayerLayout:
    """Adds up by layer what was measured by parameter."""

    def __init__(self, names: Sequence[str], order: Sequence[int]) -> None:
        by_place = sorted(zip(order, names, strict=True))
        self.names = tuple(dict.fromkeys(name for _, name in by_place))
        """The layers, in the order of the model."""
        numbers = {name: number for number, name in enumerate(self.names)}
        self.of_parameter = tuple(numbers[name] for name in names)
        """For each parameter the number of its layer."""
        self._indices: dict[torch.device, Tensor] = {}
        self._signals: dict[tuple[object, ...], tuple[Signal, ...]] = {}

    def sums(self, rows: Tensor) -> Tensor:
        """Sums by layer, of rows that have one column for each parameter."""
        return rows.new_zeros(len(rows), len(self.names)).index_add_(1, self._index(rows.device), rows)

    def largest(self, row: Tensor) -> Tensor:
        """The largest by layer, of a row of values of 0 or more."""
        return row.new_zeros(len(self.names)).scatter_reduce_(0, self._index(row.device), row, "amax")

    def _index(self, device: torch.device) -> Tensor:
        index = self._indices.get(device)
        if index is None:
            index = self._indices[device] = on_device(self.of_parameter, device, torch.long)
        return index

    def touched_by(self, columns: Collection[int]) -> tuple[int, ...]:
        """The layers that own any of these parameters."""
        return tuple(sorted({self.of_parameter[column] for column in columns}))

    def block(self, quantities: tuple[str, ...], rows: Tensor, only: tuple[int, ...] | None = None) -> Block:
        """One row of values for each quantity, as a block; of `only` these layers, where that is said."""
        if only is not None and len(only) == len(self.names):
            only = None
        if only is not None:
            rows = rows.index_select(1, on_device(only, rows.device, torch.long))
        signals = self._signals.get((quantities, only))
        if signals is None:
            if len(self._signals) >= MOST_SIGNAL_SETS:
                self._signals.clear()
            names = self.names if only is None else tuple(self.names[at] for at in only)
            signals = tuple(Signal(quantity, name) for quantity in quantities for name in names)
            self._signals[quantities, only] = signals
        return Block(signals, rows.flatten())


@lru_cache(maxsize=256)
def whole_signals(quantities: tuple[str, ...], place: str) -> tuple[Signal, ...]:
    """Quantities of the whole model; `place` is that of its training, where several run side by side."""
    return tuple(Signal(quantity, place) for quantity in quantities)
