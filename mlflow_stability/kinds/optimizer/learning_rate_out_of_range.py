"""Says when a learning rate is one that hardly any training uses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mlflow_stability.detectors.detector import Detector, Point
from mlflow_stability.vocabulary.facts import LimitFacts
from mlflow_stability.vocabulary.result import Action, Remedy
from mlflow_stability.vocabulary.result.finding import Finding
from mlflow_stability.vocabulary.result.severity import Severity


@dataclass(frozen=True, slots=True)
class LearningRateRangeFacts(LimitFacts):
    """A learning rate that is outside the usual range."""

    kind: ClassVar[str] = "learning_rate_out_of_range"
    metrics: ClassVar = {"learning_rate": "value", "limit": "threshold"}

    is_high: bool
    """Whether it was above the threshold in so many steps in a row; else it never was in so many first ones."""

    def sentence(self, step: int, unit: str = "step", /) -> str:
        """``learning rate 0.05 at step 400, above 0.01 for 20 steps.``"""
        where = f"above {self.threshold:g} for" if self.is_high else f"never above {self.threshold:g} in"
        return f"learning rate {self.value:.3g} at {unit} {step}, {where} {self.in_a_row} {unit}s."


@dataclass(slots=True)
class LearningRateOutOfRangeState:
    """What has been seen of one parameter group."""

    seen: int = 0
    highest: float = 0.0
    high: int = 0
    """For how many steps it has been too high."""
    said: bool = False


@dataclass(frozen=True, slots=True)
class LearningRateOutOfRange(Detector):
    """The learning rate is outside the usual range for Adam.

    What it sees: a rate above {highest} for {high_steps} steps, or one that never exceeded {lowest} in the first
    {low_steps} steps. One finding per parameter group. The end of a schedule, where the rate goes to zero, does not
    count.

    Why it matters: a rate that is off by powers of ten is usually a configuration error.

    What to try: check the configuration; for Adam 1e-5 to 1e-3 is usual.

    When it is wrong: optimizers other than the Adam family: SGD uses 0.1, Muon 0.02, Adafactor its own.

    Reference: https://github.com/google-research/tuning_playbook
    """

    highest: float = 1e-2
    """Learning rate above which it is unusually high."""
    high_steps: int = 20
    """Number of high steps in a row."""
    lowest: float = 1e-8
    """Learning rate that must be reached within `low_steps`."""
    low_steps: int = 1000
    """Number of first steps for `lowest`."""

    kind = "learning_rate_out_of_range"
    noun = "a learning rate out of range"
    plural = "learning rates out of range"
    order = 420
    on_request = True
    quantities = ("learning_rate",)
    severities = (Severity.INFO,)
    experimental = True
    remedies = (
        Remedy(Action.CHECK_CONFIGURED_RATE),
        Remedy(Action.CHECK_SCHEDULE),
    )
    state_type = LearningRateOutOfRangeState

    def step(
        self, state: LearningRateOutOfRangeState, point: Point
    ) -> tuple[LearningRateOutOfRangeState, Finding | None]:
        """Look at the next learning rate."""
        rate = point.value
        if state.said or not point.finite:
            return state, None
        state.seen += 1
        state.highest = max(state.highest, rate)
        state.high = state.high + 1 if rate > self.highest else 0
        if state.high >= self.high_steps:
            facts = LearningRateRangeFacts(rate, self.highest, is_high=True, in_a_row=state.high)
        elif state.seen == self.low_steps and state.highest < self.lowest:
            facts = LearningRateRangeFacts(rate, self.lowest, is_high=False, in_a_row=state.seen)
        else:
            return state, None
        state.said = True
        return state, self.finding(point, Severity.INFO, facts)
