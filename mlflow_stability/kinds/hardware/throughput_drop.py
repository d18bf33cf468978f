"""Says when fewer samples or tokens go through."""

from __future__ import annotations

from dataclasses import dataclass

from mlflow_stability.detectors.debounce import Streak
from mlflow_stability.detectors.detector import Detector, Point
from mlflow_stability.detectors.finding import finding
from mlflow_stability.vocabulary.result import Action, Remedy
from mlflow_stability.vocabulary.result.event import Event, Severity


@dataclass(frozen=True, slots=True)
class ThroughputDrop(Detector):
    """The throughput fell below {share:percent} of its usual value.

    What it sees: {steps} measurements in a row below {share:percent} of the usual throughput. The finding ends when it
    is back.

    Why it matters: the same result costs twice as much. A slow data source or a throttled device is the usual reason.

    What to try: profile the data loader; check the device clock and temperature; check the network.

    When it is wrong: batches that become smaller or shorter on purpose. On a shared machine it was found in 6 of 117
    healthy trainings; therefore it is INFO only.

    Reference: Jiang et al., MegaScale (arXiv:2402.15627)
    """

    share: float = 0.5
    """Share of the usual throughput below which it has dropped."""
    steps: int = 5
    """Number of low values in a row."""

    kind = "throughput_drop"
    noun = "a drop in throughput"
    plural = "drops in throughput"
    question = "Did the throughput fall?"
    check_by_hand = "Divide samples by seconds over 100 steps at the start and now; compare with a run that was fast."
    order = 250
    quantities = ("tokens_per_second", "samples_per_second")
    compared = ("tokens_per_second", "samples_per_second")
    severities = (Severity.INFO,)
    experimental = True
    remedies = (
        Remedy(Action.PROFILE_DATA_LOADER),
        Remedy(Action.CHECK_CLOCK),
        Remedy(Action.CHECK_NETWORK),
    )
    state_type = Streak

    def step(self, state: Streak, point: Point) -> tuple[Streak, Event | None]:
        """Look at the next throughput."""
        if not point.finite or not point.scale or point.center <= 0:
            return state, None
        bad = point.value < point.center * self.share
        if not state.reaches(self.steps, bad=bad):
            return state, None
        return state, finding(
            self,
            point,
            Severity.INFO,
            f"{point.quantity} {point.value:.4g} at step {point.step}, {point.value / point.center:.0%} of the usual "
            f"{point.center:.4g} (threshold {self.share:.0%}).",
            {point.quantity: point.value, "level": point.center},
        )
