"""Says when fewer samples or tokens go through."""

from __future__ import annotations

from dataclasses import dataclass

from mlflow_stability.detectors.engine.debounce import Streak
from mlflow_stability.detectors.engine.detector import Detector, Point
from mlflow_stability.detectors.engine.finding import finding
from mlflow_stability.vocabulary.result.event import Event, Severity


@dataclass(frozen=True, slots=True)
class ThroughputDrop(Detector):
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

    kind = "throughput_drop"
    noun = "a drop in throughput"
    plural = "drops in throughput"
    order = 250
    quantities = ("tokens_per_second", "samples_per_second")
    compared = ("tokens_per_second", "samples_per_second")
    severities = (Severity.INFO,)
    experimental = True
    remedies = (
        "Look at the data loader.",
        "Look at the device's clock and temperature.",
        "Look at the network.",
    )
    state_type = Streak

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
