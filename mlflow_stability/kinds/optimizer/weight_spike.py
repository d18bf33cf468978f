"""Says when the weights leap."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import ClassVar

from mlflow_stability.detectors.detector import Point
from mlflow_stability.detectors.finding_type import Instability, Moves, Symptom
from mlflow_stability.detectors.streak import StreakByPlace, StreakDetector
from mlflow_stability.vocabulary.facts import Facts, RiseFacts
from mlflow_stability.vocabulary.measured.signal import of_the_whole
from mlflow_stability.vocabulary.result import LOWER_RATE, Action, Remedy


@dataclass(frozen=True, slots=True)
class WeightSpikeFacts(RiseFacts):
    """A norm of weights that jumped."""

    kind: ClassVar[str] = "weight_spike"
    metrics: ClassVar = {"param_norm": "value", "level": "baseline"}

    def sentence(self, step: int, unit: str = "step", /) -> str:
        """``norm of the weights 120 at step 400, 12 times its baseline of 10 (threshold 10 times).``"""
        whose = "the weights" if of_the_whole(self.place) else f"the weights of {self.place}"
        return (
            f"norm of {whose} {self.value:.4g} at {unit} {step}, {self.value / self.baseline:.3g} times its "
            f"baseline of {self.baseline:.4g} (threshold {self.ratio:g} times)."
        )


@dataclass(slots=True)
class WeightSpikeState(StreakByPlace):
    """What has been seen so far."""

    last: dict[str, deque[float]] = field(default_factory=dict)
    """Of each place the last norms that were no spike."""


@dataclass(frozen=True, slots=True)
class WeightSpike(StreakDetector):
    """The weight norm jumped above its baseline.

    What it sees: a weight norm, of the whole model or of a layer, at {smallest_rise} times its baseline and the lowest
    of the last {window} measurements. Before there is a baseline of {baseline.MINIMUM} measurements, their median
    counts, where the last {fewest} differ by less than a factor of {steady}. Of layers that jump together the first is
    named. The finding ends when all are back.

    Why it matters: weights change little in one step. Such a factor means a wrong update, or other code that wrote to
    them.

    What to try: restart from a checkpoint before it; inspect the update and the gradient norm at this step; lower the
    learning rate.

    When it is wrong: weights that start near zero; weights that are loaded or reset during training. No finding in 117
    healthy trainings of 39 kinds (110,000 measured values). Before there is a baseline: none in 39 trainings.

    Reference: Molybog et al., A theory on Adam instability (arXiv:2304.09871)
    """

    smallest_rise: float = 10.0
    """Minimum ratio of the norm to its baseline."""
    fewest: int = 3
    """Minimum number of measurements; the last of them must be steady where there is no baseline yet."""
    window: int = 8
    """Maximum number of measurements before that count."""
    steady: float = 1.5
    """Maximum ratio between the last `fewest` measurements for them to be steady."""

    kind = "weight_spike"
    instability = Instability.HARMFUL
    noun = "a weight spike"
    plural = "weight spikes"
    question = "Did the weights jump?"
    check_by_hand = (
        "Compare the norm of each parameter with that of the last checkpoint; a factor of 2 is not training."
    )
    symptom = Symptom.LARGE_UPDATES
    order = 210
    quantities = ("param_norm",)
    compared = ("param_norm",)
    across_places = True
    by_sensitivity: ClassVar[Mapping[str, Moves]] = {"smallest_rise": "power"}
    remedies = (
        Remedy(Action.RESTART_BEFORE_STEP),
        Remedy(Action.INSPECT_NORM_AND_UPDATE),
        LOWER_RATE,
    )
    state_type = WeightSpikeState

    def takes(self, _state: WeightSpikeState, point: Point) -> bool:
        """Whether it is finite: other values stand in for a baseline that is not known yet."""
        return point.finite

    def facts(self, state: WeightSpikeState, point: Point) -> Facts | None:
        """Whether the norm is far above its baseline."""
        last = state.last.setdefault(point.place, deque(maxlen=self.window))
        level = self._level(last, point)
        # Weights that began near zero can grow faster than their baseline, without any jump.
        has_jumped = point.value >= self.smallest_rise * max(level, min(last, default=0.0))
        if level > 0 and has_jumped:
            return WeightSpikeFacts(point.value, level, self.smallest_rise, place=point.place)
        last.append(point.value)
        return None

    def _level(self, last: Sequence[float], point: Point) -> float:
        """What is usual; 0 where that is not known yet."""
        if point.scale:
            return point.center
        newest = list(last)[-self.fewest :]
        if len(newest) < self.fewest or min(newest) <= 0 or max(newest) > self.steady * min(newest):
            return 0.0
        return median(last)
