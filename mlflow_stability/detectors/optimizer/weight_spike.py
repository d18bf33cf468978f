"""Says when the weights leap."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from mlflow_stability.detectors.engine.debounce import StreakByPlace
from mlflow_stability.detectors.engine.detector import Detector, Point
from mlflow_stability.detectors.engine.finding import finding
from mlflow_stability.detectors.engine.finding_type import Moves
from mlflow_stability.vocabulary.measured.signal import of_the_whole
from mlflow_stability.vocabulary.result.event import Event


@dataclass(frozen=True, slots=True)
class WeightSpike(Detector):
    """The norm of the weights leapt.

    What it sees: a norm of the weights, of the whole model or of a layer, 10 times above its level. Of layers that leap
    together the first is named. One finding until all are back.

    Why it matters: weights hardly move in a step; ten-fold means that an update went wrong, or that something else
    wrote into them.

    What to try: go back to a state from before it; look at the update and the gradient of this step; lower the
    learning rate.

    When it is wrong: weights that start at or near zero; weights that are loaded or reset in mid-training. It spoke in
    none of 117 healthy trainings of 39 kinds (110,000 measured values).

    Reference: Molybog et al., A theory on Adam instability (arXiv:2304.09871)
    """

    smallest_rise: float = 10.0
    """The least norm as a multiple of its level."""

    kind = "weight_spike"
    noun = "a weight spike"
    plural = "weight spikes"
    order = 210
    quantities = ("param_norm",)
    compared = ("param_norm",)
    across_places = True
    by_sensitivity: ClassVar[Mapping[str, Moves]] = {"smallest_rise": "power"}
    remedies = (
        "Go back to a state from before it.",
        "Look at the gradient norm and the update of this step.",
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
            f"The norm of {whose} is {point.value:.4g} at step {point.step}, from a level of {point.center:.4g}.",
            {"param_norm": point.value, "level": point.center},
        )
