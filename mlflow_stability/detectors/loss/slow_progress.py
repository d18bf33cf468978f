"""Says when a loss has hardly fallen since the run began."""

from __future__ import annotations

from dataclasses import dataclass, field

from mlflow_stability.detectors.engine.detector import Detector, Point
from mlflow_stability.detectors.engine.finding import finding
from mlflow_stability.vocabulary.result.event import Event, Severity


@dataclass(slots=True)
class Progress:
    """What has been seen so far."""

    seen: int = 0
    start_sum: float = 0.0
    recent: list[float] = field(default_factory=list)
    said: bool = False


@dataclass(frozen=True, slots=True)
class SlowProgress(Detector):
    """The loss has hardly fallen since the run began.

    What it sees: after 1000 steps and every 1000 from then on, a mean of 100 losses less than 1 % below the first 20.
    One finding until it has gained more.

    Why it matters: either there is little left to learn, or the training does not learn.

    What to try: raise the learning rate; look whether the right parameters are trained.

    When it is wrong: a fine-tuning that starts near its end; losses that do not measure progress. It spoke in 6 of 117
    healthy trainings, all of them a GAN or Q-learning.

    Reference: https://github.com/google-research/tuning_playbook
    """

    least_gain: float = 0.01
    """The share of the first losses that must be gained."""
    first_steps: int = 20
    """How many losses are the first."""
    every: int = 1000
    """After how many losses it is looked at."""
    recent_steps: int = 100
    """How many losses the mean is of."""

    kind = "slow_progress"
    noun = "slow progress"
    order = 240
    quantities = ("loss",)
    severities = (Severity.INFO,)
    experimental = True
    remedies = (
        "Raise the learning rate.",
        "Look whether the right parameters are trained.",
    )
    state_type = Progress

    def step(self, state: Progress, point: Point) -> tuple[Progress, Event | None]:
        """Look at the next loss."""
        if not point.finite or point.value <= 0:
            return state, None
        state.seen += 1
        if state.seen <= self.first_steps:
            state.start_sum += point.value
        place = state.seen % self.every
        if place > self.every - self.recent_steps:
            state.recent.append(point.value)
        if place:
            return state, None
        start, now = state.start_sum / self.first_steps, (sum(state.recent) + point.value) / (len(state.recent) + 1)
        state.recent.clear()
        slow = now > start * (1 - self.least_gain)
        if not slow or state.said:
            state.said = slow
            return state, None
        state.said = True
        return state, finding(
            self,
            point,
            Severity.INFO,
            f"loss is {now:.4g} at step {point.step}; it began at {start:.4g}, {state.seen:,} steps before.",
            {"loss": now, "start": start, "gain": 1 - now / start},
        )
