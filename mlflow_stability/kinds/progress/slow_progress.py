"""Says when a loss has hardly fallen since the run began."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from mlflow_stability.detectors.detector import Detector, Point
from mlflow_stability.vocabulary.facts import Facts
from mlflow_stability.vocabulary.result import Action, Finding, Remedy, Severity


@dataclass(slots=True)
class SlowProgressState:
    """What has been seen so far."""

    seen: int = 0
    start_sum: float = 0.0
    recent: list[float] = field(default_factory=list)
    said: bool = False


@dataclass(frozen=True, slots=True)
class SlowProgressFacts(Facts):
    """A loss that has hardly fallen since the start of the run."""

    kind: ClassVar[str] = "slow_progress"
    metrics = ("loss", "start", "gain")

    loss: float
    """Mean of the last losses, in the unit of the loss."""
    start: float
    """Mean of the first losses, in the unit of the loss."""
    gain: float
    """How far the loss has fallen since, as a share."""
    threshold: float
    """From which share on that is progress."""
    steps: int
    """Number of losses since the start."""

    def sentence(self, step: int, unit: str = "step", /) -> str:
        """``loss 2.29 at step 999, 0.4% below its start of 2.3 1,000 steps ago (threshold 1%).``"""
        return (
            f"loss {self.loss:.4g} at {unit} {step}, {self.gain:.1%} below its start of {self.start:.4g} "
            f"{self.steps:,} {unit}s ago (threshold {self.threshold:.0%})."
        )


@dataclass(frozen=True, slots=True)
class SlowProgress(Detector):
    """The loss has fallen by less than {least_gain:percent} since the start of the run.

    What it sees: every {every} steps, a mean of {recent_steps} losses less than {least_gain:percent} below the mean of
    the first {first_steps}. The finding ends when the loss has fallen further.

    Why it matters: either little is left to learn, or the training does not learn.

    What to try: raise the learning rate; check that the right parameters are trained.

    When it is wrong: fine-tuning that starts near its end; losses that do not measure progress. Found in 6 of 117
    healthy trainings, all of them a GAN or Q-learning.

    Reference: https://github.com/google-research/tuning_playbook
    """

    least_gain: float = 0.01
    """Minimum relative fall since the start."""
    first_steps: int = 20
    """Number of first losses that define the start."""
    every: int = 1000
    """Number of losses between two judgements."""
    recent_steps: int = 100
    """Number of losses in the recent mean."""

    kind = "slow_progress"
    noun = "slow progress"
    order = 240
    quantities = ("loss",)
    severities = (Severity.INFO,)
    experimental = True
    remedies = (
        Remedy(Action.RAISE_LEARNING_RATE),
        Remedy(Action.CHECK_TRAINED_PARAMETERS),
    )
    state_type = SlowProgressState

    def step(self, state: SlowProgressState, point: Point) -> tuple[SlowProgressState, Finding | None]:
        """Look at the next loss."""
        if not point.finite or point.value <= 0 or not point.has_level:
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
        facts = SlowProgressFacts(now, start, 1 - now / start, self.least_gain, state.seen)
        return state, self.finding(point, Severity.INFO, facts)
