"""Says when steps take twice as long."""

from __future__ import annotations

from dataclasses import dataclass

from mlflow_stability.detectors.debounce import Streak
from mlflow_stability.detectors.detector import Detector, Point
from mlflow_stability.detectors.finding import finding
from mlflow_stability.vocabulary.result import Action, Remedy
from mlflow_stability.vocabulary.result.event import Event, Severity


@dataclass(frozen=True, slots=True)
class StepTimeIncrease(Detector):
    """Steps take {smallest_rise} times as long as usual.

    What it sees: {steps} steps in a row that each take more than {smallest_rise} times as long as usual. Single long
    steps (a checkpoint, a probe, an evaluation) and the first {baseline.MINIMUM} steps do not count. The finding ends
    when the time is back.

    Why it matters: the machine, the data or the network has become slower; the same result costs twice as much.

    What to try: profile the data loader; check the device clock and temperature; look for other processes on the
    machine; look for growing sequence lengths.

    When it is wrong: batches that grow on purpose; a phase with more work per step. On a shared machine it was found in
    10 of 117 healthy trainings; therefore it is INFO only.

    Reference: Jiang et al., MegaScale (arXiv:2402.15627)
    """

    smallest_rise: float = 2.0
    """Minimum ratio to the usual time."""
    steps: int = 10
    """Number of slow steps in a row."""

    kind = "step_time_increase"
    noun = "longer steps"
    question = "Did steps become slower?"
    check_by_hand = "Time 100 steps with torch.cuda.synchronize() before each reading of the clock."
    order = 260
    quantities = ("step_time",)
    judged = "step_time"
    compared = ("step_time",)
    severities = (Severity.INFO,)
    experimental = True
    remedies = (
        Remedy(Action.PROFILE_DATA_LOADER),
        Remedy(Action.CHECK_CLOCK),
        Remedy(Action.LOOK_FOR_OTHER_PROCESSES),
    )
    state_type = Streak

    def step(self, state: Streak, point: Point) -> tuple[Streak, Event | None]:
        """Look at the time of the next step."""
        if not point.finite or not point.scale or point.center <= 0:
            return state, None
        bad = point.value > point.center * self.smallest_rise
        if not state.reaches(self.steps, bad=bad):
            return state, None
        return state, finding(
            self,
            point,
            Severity.INFO,
            f"step time {point.value:.3g} s at step {point.step}, {point.value / point.center:.3g} times the usual "
            f"{point.center:.3g} s (threshold {self.smallest_rise:g} times).",
            {"step_time": point.value, "level": point.center},
        )
