"""What a mirror writes its numbers with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Scalar:
    """One number, by the key that it has in MLflow."""

    key: str
    step: int
    value: float
    time: float


@dataclass(frozen=True, slots=True)
class LayerHistogram:
    """The gradients or weights of one layer at one step."""

    key: str
    step: int
    time: float
    edges: Sequence[float]
    """Where bins begin and end: one more than `counts`."""
    counts: Sequence[int]


@dataclass(frozen=True, slots=True)
class MirroredRun:
    """The run that the numbers are of."""

    run_id: str
    name: str
    directory: str
    """The working directory of the training, which relative folders refer to."""


class ScalarWriter(Protocol):
    """The way into one tool."""

    def write(self, scalars: Sequence[Scalar]) -> None:
        """Write these, so that they are there when this returns; `MirrorError` if that is not possible."""

    def write_histograms(self, histograms: Sequence[LayerHistogram]) -> None:
        """The same of histograms."""

    def saved(self) -> Mapping[str, Any]:
        """What a new writer needs in order to go on behind what was written so far, as plain JSON."""

    def close(self) -> None:
        """Nothing more will come."""
