"""What a probe measured in one capture: names and, one for each, values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from torch import Tensor

from mlflow_stability.vocabulary.measured.signal import Signal


@dataclass(frozen=True, slots=True)
class Block:
    signals: tuple[Signal, ...]
    """The same objects as long as the same things are measured: whoever reads them may go by identity."""
    values: Tensor | tuple[float, ...]
    """One row, still on its device; or numbers of the host."""
    on_host: Callable[[Sequence[float]], Sequence[float]] | None = None
    """Makes of the row, once it has arrived, one value for each signal; None: it has them already."""


@lru_cache(maxsize=1024)
def signals_at(quantities: tuple[str, ...], *places: str) -> tuple[Signal, ...]:
    """Return a signal for each quantity and place: the same objects each time."""
    return tuple([Signal(quantity, place) for quantity in quantities for place in places])
