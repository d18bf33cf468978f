"""Says when fewer samples or tokens go through."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mlflow_stability.detectors.engine.debounce import Streak
from mlflow_stability.detectors.engine.detector import Point
from mlflow_stability.detectors.engine.finding import finding
from mlflow_stability.detectors.engine.layer_values import ALL
from mlflow_stability.vocabulary.result.event import Event, Severity


@dataclass(frozen=True, slots=True)
class ThroughputDrop:
    """Half as many samples or tokens go through as before.

    What it sees: 5 measurements in a row below half of the usual throughput. One finding until it is back.

    Why it matters: the same result costs twice as much; a slow data source or a throttled device is the usual reason.

    What to try: look at the data loader; look at the device's clock and temperature; look at the network.

    When it is wrong: batches that become smaller or shorter on purpose. On a machine shared with other work it spoke in
    6 of 117 healthy trainings, so that it is no more than information.

    Reference: Jiang et al., MegaScale (arXiv:2402.15627)
    """

    share: float = 0.5
    """The share of the usual throughput below which it has dropped."""
    steps: int = 5
    """How many times in a row."""

    kind: ClassVar[str] = "throughput_drop"
    rule: ClassVar[str] = ""
    quantities: ClassVar[tuple[str, ...]] = ("tokens_per_second", "samples_per_second")
    compared: ClassVar[tuple[str, ...]] = ("tokens_per_second", "samples_per_second")
    across_places: ClassVar[bool] = False
    places: ClassVar[str] = ALL
    severities: ClassVar[tuple[Severity, ...]] = (Severity.INFO,)
    experimental: ClassVar[bool] = True
    remedies: ClassVar[tuple[str, ...]] = (
        "Look at the data loader.",
        "Look at the device's clock and temperature.",
        "Look at the network.",
    )

    def begin(self) -> Streak:
        """Start afresh, knowing nothing."""
        return Streak()

    def step(self, state: Streak, point: Point) -> tuple[Streak, Event | None]:
        """Look at the next throughput."""
        if not point.finite or not point.scale:
            return state, None
        bad = point.value < point.center * self.share
        if not state.reaches(self.steps, bad=bad):
            return state, None
        return state, finding(
            self,
            point,
            Severity.INFO,
            f"{point.quantity} is {point.value:.4g} at step {point.step}; {point.center:.4g} was usual.",
            {point.quantity: point.value, "level": point.center},
        )
