"""Says when the loss scale of fp16 training only goes down."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mlflow_stability.detectors.detector import Detector, Point
from mlflow_stability.detectors.finding_type import Instability, Symptom
from mlflow_stability.vocabulary.facts import Facts
from mlflow_stability.vocabulary.result import LOWER_RATE_OR_CLIP, Action, Remedy
from mlflow_stability.vocabulary.result.finding import Finding
from mlflow_stability.vocabulary.result.severity import Severity


@dataclass(frozen=True, slots=True)
class LossScaleFacts(Facts):
    """A loss scale that fell to its minimum, or kept falling."""

    kind: ClassVar[str] = "loss_scale_collapse"
    metrics: ClassVar = ("loss_scale", "highest", "falls")

    loss_scale: float
    """The loss scale."""
    highest: float
    """The highest one so far."""
    falls: int
    """Number of times that it was lowered without growing in between."""
    floor: float
    """The threshold of the scale."""
    most_falls: int
    """The threshold of that number."""

    def sentence(self, step: int, unit: str = "step", /) -> str:
        """``loss scale 1 at step 400, at its minimum (threshold 1); highest before: 65536.``"""
        why = f"lowered {self.falls} times without growing (threshold {self.most_falls})"
        if self.loss_scale <= self.floor:
            why = f"at its minimum (threshold {self.floor:g})"
        return f"loss scale {self.loss_scale:g} at {unit} {step}, {why}; highest before: {self.highest:g}."


@dataclass(slots=True)
class LossScaleCollapseState:
    """What has been seen so far."""

    last: float | None = None
    highest: float = 0.0
    held: int = 0
    """For how many steps the scale has not changed."""
    settled: bool = False
    """Whether the search for a scale at the start is over."""
    falls: int = 0
    """How often it fell without growing in between, since it had settled."""
    said: bool = False


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

    floor: float = 1.0
    """Minimum loss scale; at or below it nothing is left to lower."""
    falls: int = 5
    """Number of decreases without growth in between."""
    settled_after: int = 50
    """Number of steps the first scale must hold until the search for it is over."""

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
        """Look at the next scale."""
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
            state.settled, state.falls, state.said = True, 0, False
            return state, None
        state.falls += state.settled
        if state.said or not (scale <= self.floor or state.falls >= self.falls):
            return state, None
        state.said = True
        facts = LossScaleFacts(scale, state.highest, state.falls, self.floor, self.falls)
        return state, self.finding(point, Severity.CRITICAL, facts)
