"""Says when the loss scale of fp16 training only goes down."""

from __future__ import annotations

from dataclasses import dataclass

from mlflow_stability.detectors.detector import Detector, Point
from mlflow_stability.detectors.finding import finding
from mlflow_stability.detectors.finding_type import Instability, Symptom
from mlflow_stability.vocabulary.result import LOWER_RATE_OR_CLIP, Action, Remedy
from mlflow_stability.vocabulary.result.event import Event, Severity


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

    def step(self, state: LossScaleCollapseState, point: Point) -> tuple[LossScaleCollapseState, Event | None]:
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
        at_floor = scale <= self.floor
        if state.said or not (at_floor or state.falls >= self.falls):
            return state, None
        state.said = True
        why = (
            f"at its minimum (threshold {self.floor:g})"
            if at_floor
            else f"lowered {state.falls} times without growing (threshold {self.falls})"
        )
        return state, finding(
            self,
            point,
            Severity.CRITICAL,
            f"loss scale {scale:g} at step {point.step}, {why}; highest before: {state.highest:g}.",
            {"loss_scale": scale, "highest": state.highest, "falls": float(state.falls)},
        )
