"""Says when the weights leap."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from mlflow_stability.detectors.engine.debounce import StreakByPlace
from mlflow_stability.detectors.engine.detector import Detector, Point
from mlflow_stability.detectors.engine.finding import finding
from mlflow_stability.detectors.engine.finding_type import Moves, Symptom
from mlflow_stability.vocabulary.measured.signal import of_the_whole
from mlflow_stability.vocabulary.result.event import Event


@dataclass(frozen=True, slots=True)
class WeightSpike(Detector):
    """The weight norm jumped above its baseline.

    What it sees: a weight norm, of the whole model or of a layer, at 10 times its baseline. Of layers that jump
    together the first is named. The finding ends when all are back.

    Why it matters: weights change little in one step. A factor of ten means a wrong update, or other code that wrote to
    them.

    What to try: restart from a checkpoint before it; inspect the update and the gradient norm at this step; lower the
    learning rate.

    When it is wrong: weights that start near zero; weights that are loaded or reset during training. No finding in 117
    healthy trainings of 39 kinds (110,000 measured values).

    Reference: Molybog et al., A theory on Adam instability (arXiv:2304.09871)
    """

    smallest_rise: float = 10.0
    """Minimum ratio of the norm to its baseline."""

    kind = "weight_spike"
    noun = "a weight spike"
    plural = "weight spikes"
    symptom = Symptom.LARGE_UPDATES
    order = 210
    quantities = ("param_norm",)
    compared = ("param_norm",)
    across_places = True
    by_sensitivity: ClassVar[Mapping[str, Moves]] = {"smallest_rise": "power"}
    remedies = (
        "Restart from a checkpoint before this step.",
        "Inspect the gradient norm and the update at this step.",
        "Lower the learning rate.",
    )
    state_type = StreakByPlace

    def step(self, state: StreakByPlace, point: Point) -> tuple[StreakByPlace, Event | None]:
        """Look at the next norm."""
        if not point.finite or not point.scale or point.center <= 0:
            return state, None
        if not state.reaches(point.place, 1, bad=point.value >= point.center * self.smallest_rise):
            return state, None
        whose = "the weights" if of_the_whole(point.place) else f"the weights of {point.place}"
        return state, finding(
            self,
            point,
            self.severities[-1],
            f"norm of {whose} {point.value:.4g} at step {point.step}, {point.value / point.center:.3g} times its "
            f"baseline of {point.center:.4g} (threshold {self.smallest_rise:g} times).",
            {"param_norm": point.value, "level": point.center},
        )
