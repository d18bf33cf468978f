"""Says when steps take twice as long."""

from __future__ import annotations

from dataclasses import dataclass

from mlflow_stability.detectors.engine.debounce import Streak
from mlflow_stability.detectors.engine.detector import Detector, Point
from mlflow_stability.detectors.engine.finding import finding
from mlflow_stability.vocabulary.result.event import Event, Severity


@dataclass(frozen=True, slots=True)
class StepTimeIncrease(Detector):
    """Steps take twice as long as they did.

    What it sees: 10 steps in a row that each take more than twice the usual time. Single long steps (a checkpoint, a
    probe, an evaluation) and the first 32 are no finding. One finding until the time is back.

    Why it matters: the machine, the data or the network has become slower: the same result costs twice as much.

    What to try: look at the data loader; look at the device's clock and temperature; look for another process on the
    machine; look for growing sequence lengths.

    When it is wrong: batches that grow on purpose; a phase with more work in each step. On a machine shared with other
    work it spoke in 10 of 117 healthy trainings, so that it is no more than information.

    Reference: Jiang et al., MegaScale (arXiv:2402.15627)
    """

    smallest_rise: float = 2.0
    """The least time as a multiple of the usual one."""
    steps: int = 10
    """How many steps in a row."""

    kind = "step_time_increase"
    noun = "longer steps"
    order = 260
    quantities = ("step_time",)
    compared = ("step_time",)
    severities = (Severity.INFO,)
    experimental = True
    remedies = (
        "Look at the data loader.",
        "Look at the device's clock and temperature.",
        "Look for another process on the machine.",
    )
    state_type = Streak

    def step(self, state: Streak, point: Point) -> tuple[Streak, Event | None]:
        """Look at the time of the next step."""
        if not point.finite or not point.scale:
            return state, None
        bad = point.value > point.center * self.smallest_rise
        if not state.reaches(self.steps, bad=bad):
            return state, None
        return state, finding(
            self,
            point,
            Severity.INFO,
            f"Steps take {point.value:.3g} s at step {point.step}; {point.center:.3g} s was usual.",
            {"step_time": point.value, "level": point.center},
        )
