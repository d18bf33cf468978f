"""Says when optimizer steps are thrown away."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from mlflow_stability.curves.curves import Curve, RunCurves
from mlflow_stability.detectors.detector import Detector, Point
from mlflow_stability.detectors.finding_type import Instability, Symptom
from mlflow_stability.kinds.rule import Rule
from mlflow_stability.vocabulary.facts import Facts
from mlflow_stability.vocabulary.result import LOWER_RATE, Action, Finding, Remedy, Severity
from mlflow_stability.vocabulary.text.phrases import counted


@dataclass(frozen=True, slots=True)
class SkippedStepsFacts(Facts):
    """Optimizer steps that were skipped, among the last ones."""

    kind: ClassVar[str] = "step_skipped"
    metrics: ClassVar = {"skipped_of_recent": "recent", "skipped_steps": "skipped_steps"}

    recent: int
    """Number of skipped steps among the last ones."""
    of_steps: int
    """Number of these last steps."""
    skipped_steps: float
    """Number of skipped steps since the start of the training."""
    threshold: int | None
    """From how many on it is a finding; None without a loss scaler, where each is."""

    def sentence(self, step: int, unit: str = "step", /) -> str:
        """``5 of the last 300 optimizer steps skipped, the latest at step 400 (threshold 3).``"""
        allowed = "" if self.threshold is None else f" (threshold {self.threshold})"
        return (
            f"{self.recent} of the last {self.of_steps} optimizer steps skipped, the latest at {unit} {step}{allowed}."
        )


@dataclass(slots=True)
class StepSkippedState:
    """What has been seen so far."""

    count: float | None = None
    """How many steps had been skipped at the last look."""
    scaled: bool = False
    """Whether a loss scaler is at work."""
    kept: int = 0
    """For how many steps in a row nothing was skipped."""
    settled: bool = False
    """Whether the scaler's search for its first scale is over."""
    recent: deque[int] = field(default_factory=deque)
    """The last steps at which one was skipped."""
    said: int = 0


@dataclass(frozen=True, slots=True)
class StepSkipped(Detector):
    """More optimizer steps were skipped than a loss scaler needs.

    What it sees: a step skipped without a loss scaler. With a scaler, {scaler_skips} skipped steps among {of_steps},
    after its search for a first scale is over ({settled_after} steps without a skip): a scaler that grows its scale
    every 2000 steps skips one then, which is normal. Critical when more than {critical_share:percent} of {of_steps}
    steps are skipped. The finding ends after {of_steps} steps without a skip.

    Why it matters: a skipped step learns nothing, yet the schedule continues and the data is used up. A run that skips
    most steps shows a flat loss.

    What to try: train in bf16; start with a loss scale of 1024; lower the learning rate; inspect the skipped batches.

    When it is wrong: a very short growth interval of the scaler makes skips more frequent on purpose.

    Reference: https://docs.pytorch.org/docs/stable/amp.html#gradient-scaling
    """

    of_steps: int = 300
    """Number of recent steps in which skips are counted."""
    scaler_skips: int = 3
    """Number of skips that make a warning with a loss scaler."""
    critical_share: float = 0.05
    """Share of skipped steps above which it is critical."""
    settled_after: int = 50
    """Number of steps without a skip that end the scaler's search for its first scale."""

    kind = "step_skipped"
    instability = Instability.SIGN
    noun = "skipped steps"
    question = "Were steps skipped before it?"
    check_by_hand = (
        "Compare the scaler's scale before and after each step; a lower scale means that the step was skipped."
    )
    symptom = Symptom.NON_FINITE
    order = 110
    quantities = ("skipped_steps", "loss_scale")
    severities = (Severity.WARNING, Severity.CRITICAL)
    remedies = (
        Remedy(Action.TRAIN_IN_BF16),
        Remedy(Action.START_LOSS_SCALE),
        LOWER_RATE,
        Remedy(Action.INSPECT_SKIPPED_BATCHES),
    )
    state_type = StepSkippedState

    def step(self, state: StepSkippedState, point: Point) -> tuple[StepSkippedState, Finding | None]:
        """Look at the count of skipped steps, or see that there is a loss scale."""
        if point.quantity == "loss_scale":
            state.scaled = True
            return state, None
        if not point.finite:
            return state, None
        before, state.count = state.count, point.value
        if before is None or point.value <= before:
            state.kept += 1
            state.settled = state.settled or state.kept >= self.settled_after
            if state.said and state.kept >= self.of_steps:
                state.said = 0
            return state, None
        state.kept = 0
        if state.scaled and not state.settled:
            return state, None
        recent = state.recent
        recent.append(point.step)
        while recent and (recent[0] <= point.step - self.of_steps or recent[0] > point.step):
            recent.popleft()
        many = len(recent)
        if many > self.critical_share * self.of_steps:
            severity = Severity.CRITICAL
        elif not state.scaled or many >= self.scaler_skips:
            severity = Severity.WARNING
        else:
            return state, None
        if severity <= state.said:
            return state, None
        state.said = severity
        allowed = self.scaler_skips if state.scaled else None
        return state, self.finding(point, severity, SkippedStepsFacts(many, self.of_steps, point.value, allowed))


@dataclass(frozen=True, slots=True)
class SkippedEndFacts(Facts):
    """Last steps that were all skipped."""

    kind: ClassVar[str] = "skipped_end"
    metrics = ("skipped_of_recent", "skipped_steps")

    skipped_of_recent: int
    """Number of last steps, which were all skipped."""
    skipped_steps: int
    """Number of steps that were skipped in all."""
    last_step: int
    """The last step."""
    threshold: int
    """From how many steps on it is a finding."""

    def sentence(self, step: int, unit: str = "step", /) -> str:
        """``all of the last 12 steps skipped, from step 388 to step 399 (threshold 5).``"""
        return (
            f"all of the last {counted(self.skipped_of_recent, unit)} skipped, from {unit} {step} to {unit} "
            f"{self.last_step} (threshold {self.threshold})."
        )


@dataclass(frozen=True, slots=True)
class SkippedEndRule(Rule):
    """The last steps of a run were all skipped.

    What it sees: the count of skipped steps rose with each of its last points, and by {fewest} or more.

    Why it matters: the training made no progress when it ended. A loss scaler that still searches for its scale after
    that many steps has not found one.

    What to try: train in bf16; start with a loss scale of 1024; lower the learning rate; inspect the skipped batches.

    When it is wrong: a run of a few steps that was stopped while a scaler with a very large first scale was searching.

    Reference: https://docs.pytorch.org/docs/stable/amp.html#gradient-scaling
    """

    kind = "step_skipped"
    order = 110
    remedies = StepSkipped.remedies

    fewest: int = 5
    """Minimum number of skipped steps in a row, up to the last."""

    def find(self, curves: RunCurves) -> list[Finding]:
        """The last stretch of skipped steps, in the last attempt alone."""
        last = max((curve.attempt for curve in curves.skips), default=0)
        judged = [curve for curve in curves.skips if curve.attempt == last]
        return [found for curve in judged if (found := self._of(curve)) is not None]

    def _of(self, curve: Curve) -> Finding | None:
        values, steps = curve.values[curve.finite], curve.steps[curve.finite]
        kept = np.flatnonzero(np.diff(values) <= 0)
        first = int(kept[-1]) + 1 if len(kept) else 0
        count = int(values[-1] - values[first]) if len(values) else 0
        if count < self.fewest:
            return None
        facts = SkippedEndFacts(count, int(values[-1]), int(steps[-1]), self.fewest)
        begun = steps[min(first + 1, len(steps) - 1)]
        return self.finding(curve, Severity.WARNING, facts, begun, steps[-1], peak=steps[-1])
