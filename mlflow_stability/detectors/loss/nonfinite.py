"""Detects the first NaN and the first infinity of a loss or a gradient norm.

A run of bad values is one finding, not one for each step and each quantity: it begins with the first and is over when
every quantity is finite again. Gradients that a loss scaler found to be infinite and discarded are its normal search
for a scale and do not count.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, replace

from mlflow_stability.detectors.engine.detector import WHOLE, Detector, Point
from mlflow_stability.detectors.engine.finding import finding
from mlflow_stability.detectors.engine.finding_type import Instability, Symptom
from mlflow_stability.vocabulary.facts import NonFiniteFacts
from mlflow_stability.vocabulary.result import LOWER_RATE_2_TO_5_OR_CLIP, Action, Remedy
from mlflow_stability.vocabulary.result.event import Event, Severity

SKIPPED = "skipped_steps"
LOSS = "loss"


@dataclass(frozen=True, slots=True)
class NonFiniteState:
    """What has been seen so far."""

    ill: frozenset[str] = frozenset()
    """The quantities that are bad at the moment."""
    skips: float = 0.0
    excused_step: int = -1
    """The step that the loss scaler threw away."""


def watch(state: NonFiniteState, point: Point, *, is_bad: bool) -> tuple[NonFiniteState, bool]:
    """The new state, and whether a finding begins here."""
    quantity = point.quantity
    if quantity == SKIPPED:
        if point.value > state.skips:
            return replace(state, skips=point.value, excused_step=point.step), False
        return state, False
    if is_bad:
        if quantity in state.ill or (quantity != LOSS and point.step == state.excused_step):
            return state, False
        return replace(state, ill=state.ill | {quantity}), not state.ill
    if point.finite and quantity in state.ill:
        return replace(state, ill=state.ill - {quantity}), False
    return state, False


@dataclass(frozen=True, slots=True)
class NonFiniteDetector(Detector):
    """What the detectors of NaN and of infinity share."""

    symptom = Symptom.NON_FINITE
    quantities = ("skipped_steps", "loss", "grad_norm")
    places = WHOLE
    severities = (Severity.CRITICAL,)
    state_type = NonFiniteState

    @staticmethod
    @abstractmethod
    def is_bad(value: float) -> bool:
        """Whether the value is what the detector looks for."""

    def step(self, state: NonFiniteState, point: Point) -> tuple[NonFiniteState, Event | None]:
        """Look at the next value."""
        if point.finite and not state.ill and point.quantity != SKIPPED:
            return state, None  # nearly always
        new, found = watch(state, point, is_bad=self.is_bad(point.value))
        if not found:
            return new, None
        facts = NonFiniteFacts(point.quantity, point.value, point.before)
        return new, finding(self, point, Severity.CRITICAL, facts, {point.quantity: point.value})


@dataclass(frozen=True, slots=True)
class NanDetected(NonFiniteDetector):
    """The loss or the gradient norm became NaN.

    What it sees: the first NaN of the loss or of the gradient norm after finite values. The finding ends when all are
    finite again. Gradients that a loss scaler discarded do not count.

    Why it matters: the next optimizer step writes NaN into every weight it updates, and no later step repairs that.

    What to try: find the first module whose output is NaN; inspect the inputs; lower the learning rate; clip gradients;
    train in bf16 instead of fp16.

    When it is wrong: a script that passes NaN to ``backward`` on purpose, to mark a batch without targets.

    Reference: IEEE 754; https://docs.pytorch.org/docs/stable/notes/amp_examples.html
    """

    kind = "nan_detected"
    instability = Instability.HARMFUL
    noun = "NaN"
    order = 10
    remedies = (
        Remedy(Action.FIND_FIRST_NAN_MODULE),
        Remedy(Action.INSPECT_INPUTS),
        LOWER_RATE_2_TO_5_OR_CLIP,
        Remedy(Action.TRAIN_IN_BF16),
    )

    @staticmethod
    def is_bad(value: float) -> bool:
        """Whether it is NaN."""
        return math.isnan(value)


@dataclass(frozen=True, slots=True)
class InfDetected(NonFiniteDetector):
    """The loss or the gradient norm became infinite.

    What it sees: the first infinity of the loss or of the gradient norm after finite values. The finding ends when all
    are finite again. Gradients that a loss scaler discarded do not count.

    Why it matters: an overflow precedes most NaNs. Infinity minus infinity, or times zero, is NaN one operation later,
    and then in every weight.

    What to try: lower the learning rate; clip gradients; find an unbounded exponential or division; train in bf16
    instead of fp16, or with a lower loss scale.

    When it is wrong: a log-likelihood that is minus infinity on purpose for an impossible sample.

    Reference: IEEE 754; https://docs.pytorch.org/docs/stable/notes/amp_examples.html
    """

    kind = "inf_detected"
    instability = Instability.HARMFUL
    noun = "infinity"
    order = 20
    remedies = (
        LOWER_RATE_2_TO_5_OR_CLIP,
        Remedy(Action.FIND_UNBOUNDED_OPERATION),
        Remedy(Action.TRAIN_IN_BF16_OR_SCALE),
    )

    @staticmethod
    def is_bad(value: float) -> bool:
        """Whether it is infinite."""
        return math.isinf(value)
