"""What a drawn training is: its curves, what was put into them and where, and how it was logged.

Out: frozen records, and the `RunHistory` that reading such a log would give. Sizes are in nats: how far the logarithm
of the loss moves; where a loss reaches below zero, in units of what was learnt.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.importers.history import history_of
from mlflow_stability.importers.log_content import LogContent
from mlflow_stability.vocabulary.run import RunHistory

Floats = NDArray[np.float64]
UNKNOWN = float("nan")


@dataclass(frozen=True, slots=True)
class Setting:
    """What a training is like, whatever happens in it."""

    points: int
    """Of the training loss."""
    logging: str
    """``steps``, ``epochs``, or ``both``: the training loss by steps, the validation by epochs, in one file."""
    stride: int
    """Steps between two points."""
    family: str
    shape: str
    start: float
    end: float
    noise: str
    sigma: float
    """Of one point of the training loss, in nats."""
    validations: int
    """0: there is one split only."""
    validation_sigma: float
    gap: float
    """How much higher the validation loss is, in nats."""
    with_norms: bool
    """Whether gradient norms are logged."""


@dataclass(frozen=True, slots=True)
class PlacedEvent:
    """What was put into a training, and where."""

    kind: str
    """The kind of finding that names it."""
    form: str
    """One point, several points, in the validation only, a slow rise, …"""
    size: float
    """In nats; of a plateau, what is left of the way as a share."""
    sigma: float
    """The noise of one point there, in nats."""
    start: int
    """The first step of it, as the log's reader would name it."""
    end: int
    points: int
    """How many logged points it lasts."""

    @property
    def strength(self) -> float:
        """Its size in σ."""
        return self.size / self.sigma


@dataclass(frozen=True, slots=True, eq=False)
class Logged:
    """One metric as it is in a log; what is unknown of steps or epochs is NaN."""

    name: str
    steps: Floats
    epochs: Floats
    values: Floats
    order: Floats
    """When each value was written: what has the same number is in the same row."""


@dataclass(frozen=True, slots=True, eq=False)
class DrawnRun:
    """One training."""

    seed: int
    name: str
    """How it was made: the trap, or the form of the event."""
    setting: Setting
    metrics: tuple[Logged, ...]
    event: PlacedEvent | None = None

    @property
    def healthy(self) -> bool:
        """Whether nothing should be found."""
        return self.event is None

    def history(self) -> RunHistory:
        """What reading its log gives."""
        gathered = LogContent()
        moments = np.unique(np.concatenate([metric.order for metric in self.metrics]), return_inverse=True)[1]
        rows = moments.reshape(-1).astype(np.int64)
        low = 0
        for metric in self.metrics:
            high = low + len(metric.order)
            gathered.add_column(metric.name, rows[low:high], metric.values, metric.steps, metric.epochs)
            low = high
        return history_of(gathered, Path(f"{self.name}-{self.seed}.csv"), "csv")
