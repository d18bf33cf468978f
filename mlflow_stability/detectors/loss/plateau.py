"""Says when a loss stands where it began."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import ClassVar

from mlflow_stability.detectors.engine.chance import classes_of
from mlflow_stability.detectors.engine.detector import Detector, Point
from mlflow_stability.detectors.engine.finding import finding
from mlflow_stability.detectors.engine.finding_type import Moves, Symptom
from mlflow_stability.vocabulary.result import RAISE_OR_LOWER_RATE, Action, Remedy
from mlflow_stability.vocabulary.result.event import Event, Severity


@dataclass(slots=True)
class Level:
    """What has been seen so far."""

    seen: int = 0
    start_sum: float = 0.0
    total: float = 0.0
    count: int = 0
    means: deque[float] = field(default_factory=deque)
    """The means of stretches of the loss, the newest last."""
    best: float = math.inf
    """The lowest of all means."""
    said: bool = False


@dataclass(frozen=True, slots=True)
class Plateau(Detector):
    """The loss has not fallen since the start of the training.

    What it sees: from {least_steps} steps on, a loss within {stuck_gain:percent} of its start, the first {first_steps}
    losses, that has not fallen. Or a loss that fell by less than {small_gain:percent} in all and not in the last
    {long_steps} steps. Not fallen means: no clear fall of the mean of {stretch} steps, and any fall hidden in the noise
    ({errors} standard errors) is below {fall:percent}. A loss within {chance_within:percent} of the logarithm of a
    number of classes is called chance level. A run that fell further and then converged is not a plateau. The finding
    ends when the loss has fallen by {small_gain:percent}. Losses that can be negative and adversarial training, such as
    a GAN, are not judged. `diagnose` sees the whole curve and also judges shorter runs.

    Why it matters: nothing is being learnt, and more steps of the same will not change that.

    What to try: check that labels and inputs match and are shuffled; overfit one batch until its loss is near zero;
    raise the learning rate, or lower it by a factor of 10; look for frozen parameters and dead units.

    When it is wrong: losses that do not fall by design; a warm-up longer than {least_steps} steps.

    Reference: https://karpathy.github.io/2019/04/25/recipe/
    """

    first_steps: int = 20
    """Number of first losses that define the start."""
    least_steps: int = 1000
    """Minimum number of steps before anything is judged."""
    stretch: int = 100
    """Number of steps in one mean; the last two means are compared with those before."""
    stuck_gain: float = 0.02
    """Relative fall since the start below which the loss is stuck at its start."""
    small_gain: float = 0.10
    """Relative fall since the start below which a loss without progress for `long_steps` is stuck."""
    long_steps: int = 10_000
    """Number of steps without progress for `small_gain`."""
    fall: float = 0.005
    """Minimum relative fall that counts as progress."""
    errors: float = 3.0
    """Standard errors of the fall that are allowed for noise."""
    chance_within: float = 0.005
    """Maximum relative distance to the logarithm of a number of classes for chance level."""

    kind = "plateau"
    noun = "a plateau"
    plural = "plateaus"
    symptom = Symptom.STUCK
    order = 80
    quantities = ("loss",)
    compared = ("loss",)
    by_sensitivity: ClassVar[Mapping[str, Moves]] = {
        "stuck_gain": "inverse",
        "small_gain": "inverse",
        "fall": "inverse",
    }
    remedies = (
        Remedy(Action.CHECK_LABELS),
        Remedy(Action.OVERFIT_ONE_BATCH),
        RAISE_OR_LOWER_RATE,
        Remedy(Action.LOOK_FOR_FROZEN_AND_DEAD),
    )

    def begin(self) -> Level:
        """Start afresh, knowing nothing."""
        return Level(means=deque(maxlen=self.long_steps // self.stretch))

    def step(self, state: Level, point: Point) -> tuple[Level, Event | None]:
        """Look at the next loss."""
        if not point.accepted or not point.has_level:
            return state, None
        state.seen += 1
        if state.seen <= self.first_steps:
            state.start_sum += point.value
        state.total += point.value
        state.count += 1
        if state.count < self.stretch:
            return state, None
        state.means.append(state.total / state.count)
        state.best = min(state.best, state.means[-1])
        state.total, state.count = 0.0, 0
        judged = point.logarithmic and state.seen >= self.least_steps
        return state, self._judge(state, point) if judged else None

    def _judge(self, state: Level, point: Point) -> Event | None:
        means = state.means
        start = state.start_sum / self.first_steps
        recent = (means[-1] + means[-2]) / 2
        if start <= 0 or recent <= 0 or not math.isfinite(start + recent):
            return None
        gain, best_gain = 1 - recent / start, 1 - state.best / start
        if best_gain >= self.small_gain or gain < -self.small_gain:
            state.said = False
            return None
        if state.said or (gain >= self.stuck_gain and len(means) * self.stretch < self.long_steps):
            return None
        if self._fall_at_most(list(means)) >= self.fall:
            return None
        state.said = True
        classes = classes_of(recent, self.chance_within)
        chance = f", chance level for {classes:,} classes" if classes else ""
        return finding(
            self,
            point,
            Severity.WARNING,
            f"loss {recent:.4g} at step {point.step}{chance}; it started at {start:.4g} and has not fallen "
            f"in the last {len(means) * self.stretch:,} steps.",
            {"loss": recent, "start": start, "gain": gain, **({"classes": float(classes)} if classes else {})},
        )

    def _fall_at_most(self, means: list[float]) -> float:
        """How far the loss has fallen over these means, at most, as a share of its level."""
        half = len(means) // 2
        before, after = sum(means[:half]) / half, sum(means[half:]) / (len(means) - half)
        # Two neighbouring means differ by their noise alone, nearly: 0.954 standard deviations of one, usually.
        noise = median(abs(one - other) for one, other in pairwise(means)) / 0.954
        room = self.errors * noise * math.sqrt(2 / half)
        if before - after > room:
            return math.inf  # it falls, if slowly: that alone is no plateau
        return 2 * (before - after + room) / before  # between the middles of the halves lies half of the fall
