"""Weights that all have one value when the training begins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mlflow_stability.detectors.detector import Detector, Point
from mlflow_stability.vocabulary.facts import Facts
from mlflow_stability.vocabulary.result import Action, Finding, Remedy, Severity


@dataclass(frozen=True, slots=True)
class EqualWeightsFacts(Facts):
    """Weights without any difference."""

    kind: ClassVar[str] = "equal_weights"

    def sentence(self, step: int, unit: str = "step", /) -> str:
        """``Each weight matrix has one value only at step 1: all units of a layer stay the same.``"""
        return f"Each weight matrix has one value only at {unit} {step}: all units of a layer stay the same."


@dataclass(slots=True)
class EqualWeightsState:
    """What has been seen so far."""

    is_over: bool = False


@dataclass(frozen=True, slots=True)
class EqualWeights(Detector):
    """All weights of each layer have the same value before the first step.

    What it sees: the share of weight matrices, of the first ones that are trained, whose values are all equal before
    the first step. A WARNING where all of them are, of two or more.

    Why it matters: all units of a layer get the same gradient, and stay the same for good: a layer is as good as one
    unit. Where weights are zero, most gradients are zero, too.

    What to try: initialise weights at random.

    When it is wrong: a model whose training is not meant to begin here.

    Reference: https://docs.pytorch.org/docs/stable/nn.init.html
    """

    kind = "equal_weights"
    of_setup = True
    noun = "equal weights"
    order = 1145
    question = "Do initial weights differ?"
    check_by_hand = "Print weight.std() of each layer before the first step: it must not be 0."
    quantities = ("weights_equal",)
    remedies = (Remedy(Action.INITIALISE_AT_RANDOM),)
    state_type = EqualWeightsState

    def step(self, state: EqualWeightsState, point: Point) -> tuple[EqualWeightsState, Finding | None]:
        """Look at the first share."""
        if state.is_over:
            return state, None
        state.is_over = True
        return state, self.finding(point, Severity.WARNING, EqualWeightsFacts()) if point.value >= 1 else None
