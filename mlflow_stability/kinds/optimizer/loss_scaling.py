"""Detect a loss scale that only falls, and optimizer steps that are skipped."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from mlflow_stability.curves.curves import Curve, RunCurves, after_last
from mlflow_stability.detectors.detector import Detector, Point
from mlflow_stability.detectors.finding_type import Instability, Symptom
from mlflow_stability.kinds.rule import Rule, present
from mlflow_stability.vocabulary.facts import Facts
from mlflow_stability.vocabulary.result import LOWER_RATE, LOWER_RATE_OR_CLIP, Action, Finding, Remedy, Severity
from mlflow_stability.vocabulary.text.phrases import counted


@dataclass(frozen=True, slots=True)
class LossScaleFacts(Facts):
    """A loss scale that fell to its minimum, or kept falling."""

    kind = "loss_scale_collapse"
    metrics = ("loss_scale", "highest", "falls")

    loss_scale: float  # The loss scale
    highest: float  # The highest one so far
    falls: int  # Number of times that it was lowered without growing in between
    floor: float  # The threshold of the scale
    most_falls: int  # The threshold of that number

    def sentence(self, step: int, unit: str = "step", /) -> str:
        why = f"lowered {self.falls} times without growing (threshold {self.most_falls})"
        if self.loss_scale <= self.floor:
            why = f"at its minimum (threshold {self.floor:g})"
        return f"loss scale {self.loss_scale:g} at {unit} {step}, {why}; highest before: {self.highest:g}."


@dataclass(slots=True)
class LossScaleCollapseState:
    last: float | None = None
    highest: float = 0.0
    held: int = 0  # number of steps without a change of the scale
    settled: bool = False  # whether the search for a scale at the start is over
    falls: int = 0  # number of falls without growth in between, after that search
    is_found: bool = False


@dataclass(frozen=True, slots=True)
class LossScaleCollapse(Detector):
    """The fp16 loss scale fell to its minimum, or kept falling.

    What it sees: a scale that fell to {floor} or below, or that was lowered {falls} times without growing in between.
    While the scaler searches for its first scale (until one has held for {settled_after} steps), only the minimum
    counts. The finding ends when the scale grows again.

    Why it matters: every decrease is a step that was skipped because a gradient was infinite. At the minimum the
    gradients themselves overflow, and almost no step is applied.

    What to try: train in bf16; start with a scale of 1024 and let it grow by 1.5 every 200 steps; lower the learning
    rate; clip gradients; find the module that overflows.

    When it is wrong: a scaler that was given a scale of 1 on purpose and grows it; DeepSpeed with hysteresis lowers its
    scale later than the overflow.

    Reference: Micikevicius et al., Mixed precision training (arXiv:1710.03740); DeepSpeed, loss_scaler.py
    """

    floor: float = 1.0  # minimum loss scale; at or below it nothing is left to lower
    falls: int = 5  # number of decreases without growth in between
    settled_after: int = 50  # number of steps the first scale must hold until the search for it is over

    kind = "loss_scale_collapse"
    instability = Instability.HARMFUL
    noun = "a collapse of the loss scale"
    plural = "collapses of the loss scale"
    question = "Did the loss scale fall?"
    check_by_hand = "Print scaler.get_scale() every 100 steps; below 1 even gradients of usual size overflow."
    symptom = Symptom.NON_FINITE
    order = 100
    quantities = ("loss_scale",)
    severities = (Severity.CRITICAL,)
    remedies = (
        Remedy(Action.TRAIN_IN_BF16),
        Remedy(Action.START_LOSS_SCALE),
        LOWER_RATE_OR_CLIP,
        Remedy(Action.FIND_OVERFLOWING_MODULE),
    )
    state_type = LossScaleCollapseState

    def step(self, state: LossScaleCollapseState, point: Point) -> tuple[LossScaleCollapseState, Finding | None]:
        scale, last = point.value, state.last
        if not point.finite:
            return state, None
        state.last = scale
        state.highest = max(state.highest, scale)
        if last is None or scale == last:
            state.held += 1
            state.settled = state.settled or state.held >= self.settled_after
            return state, None
        state.held = 0
        if scale > last:
            state.settled, state.falls, state.is_found = True, 0, False
            return state, None
        state.falls += state.settled
        if state.is_found or not (scale <= self.floor or state.falls >= self.falls):
            return state, None
        state.is_found = True
        facts = LossScaleFacts(scale, state.highest, state.falls, self.floor, self.falls)
        return state, self.finding(point, Severity.CRITICAL, facts)


@dataclass(frozen=True, slots=True)
class SkippedStepsFacts(Facts):
    kind = "step_skipped"
    metrics: ClassVar = {"skipped_of_recent": "recent", "skipped_steps": "skipped_steps"}

    recent: int  # Number of skipped steps among the last ones
    of_steps: int  # Number of these last steps
    skipped_steps: float  # Number of skipped steps since the start of the training
    threshold: int | None  # From how many on it is a finding; None without a loss scaler, where each is

    def sentence(self, step: int, unit: str = "step", /) -> str:
        allowed = "" if self.threshold is None else f" (threshold {self.threshold})"
        return (
            f"{self.recent} of the last {self.of_steps} optimizer steps skipped, the latest at {unit} {step}{allowed}."
        )


@dataclass(slots=True)
class StepSkippedState:
    count: float | None = None  # number of steps skipped in all
    has_scaler: bool = False
    calm_steps: int = 0  # number of steps in a row that were not skipped
    settled: bool = False  # whether the scaler's search for its first scale is over
    recent: deque[int] = field(default_factory=deque)  # the last skipped steps
    severity: int = 0  # severity of the finding that is not over


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

    of_steps: int = 300  # number of recent steps in which skips are counted
    scaler_skips: int = 3  # number of skips that make a warning with a loss scaler
    critical_share: float = 0.05  # share of skipped steps above which it is critical
    settled_after: int = 50  # number of steps without a skip that end the scaler's search for its first scale

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
        if point.quantity == "loss_scale":
            state.has_scaler = True
            return state, None
        if not point.finite:
            return state, None
        before, state.count = state.count, point.value
        if before is None or point.value <= before:
            state.calm_steps += 1
            state.settled = state.settled or state.calm_steps >= self.settled_after
            if state.calm_steps >= self.of_steps:
                state.severity = 0
            return state, None
        state.calm_steps = 0
        if state.has_scaler and not state.settled:
            return state, None
        recent = state.recent
        recent.append(point.step)
        while recent and (recent[0] <= point.step - self.of_steps or recent[0] > point.step):
            recent.popleft()
        count = len(recent)
        if state.has_scaler and count < self.scaler_skips and count <= self.critical_share * self.of_steps:
            return state, None
        severity = Severity.CRITICAL if count > self.critical_share * self.of_steps else Severity.WARNING
        if severity <= state.severity:
            return state, None
        state.severity = severity
        threshold = self.scaler_skips if state.has_scaler else None
        return state, self.finding(point, severity, SkippedStepsFacts(count, self.of_steps, point.value, threshold))


@dataclass(frozen=True, slots=True)
class SkippedEndFacts(Facts):
    """Last steps that were all skipped."""

    kind = "skipped_end"
    metrics = ("skipped_of_recent", "skipped_steps")

    skipped_of_recent: int  # Number of last steps, which were all skipped
    skipped_steps: int  # Number of steps that were skipped in all
    last_step: int  # The last step
    threshold: int  # From how many steps on it is a finding

    def sentence(self, step: int, unit: str = "step", /) -> str:
        return (
            f"all of the last {counted(self.skipped_of_recent, unit)} skipped, from {unit} {step} to {unit} "
            f"{self.last_step} (threshold {self.threshold})."
        )


@dataclass(frozen=True, slots=True)
class SkippedEndRule(Rule):
    """The last steps of a run were all skipped.

    What it sees: the count of skipped steps rose with each of its last points, and by {fewest} or more.

    When it is wrong: a run of a few steps that was stopped while a scaler with a very large first scale was searching.
    """

    kind = "step_skipped"
    order = 110
    remedies = StepSkipped.remedies

    fewest: int = 5  # minimum number of skipped steps in a row, up to the last

    def find(self, curves: RunCurves) -> list[Finding]:
        attempt = max((curve.attempt for curve in curves.skips), default=0)
        return present(self._judge(curve) for curve in curves.skips if curve.attempt == attempt)

    def _judge(self, curve: Curve) -> Finding | None:
        values, steps = curve.values[curve.finite], curve.steps[curve.finite]
        first = after_last(np.diff(values) <= 0)
        count = int(values[-1] - values[first]) if len(values) else 0
        if count < self.fewest:
            return None
        facts = SkippedEndFacts(count, int(values[-1]), int(steps[-1]), self.fewest)
        start = steps[min(first + 1, len(steps) - 1)]
        return self.finding(curve, Severity.WARNING, facts, start, steps[-1], peak=steps[-1])
