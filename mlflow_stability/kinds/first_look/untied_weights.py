"""An output layer that begins as a copy of an embedding, where tied weights were meant."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mlflow_stability.detectors.detector import Detector, Point
from mlflow_stability.vocabulary.facts import Facts
from mlflow_stability.vocabulary.result import Action, Finding, Remedy, Severity


@dataclass(frozen=True, slots=True)
class UntiedWeightsFacts(Facts):
    """A layer whose weight is a copy of an embedding's."""

    kind: ClassVar[str] = "untied_weights"

    module: str
    """The output layer."""

    def sentence(self, step: int, unit: str = "step", /) -> str:
        """``Weight of module lm_head has the values of an embedding at step 1, but is another tensor: …``"""
        return (
            f"Weight of module {self.module} has the values of an embedding at {unit} {step}, but is another tensor: "
            "they are not tied."
        )


@dataclass(slots=True)
class UntiedWeightsState:
    """Whether the layer was looked at."""

    is_over: bool = False


@dataclass(frozen=True, slots=True)
class UntiedWeights(Detector):
    """An output layer begins as a copy of an embedding, and is trained apart from it.

    What it sees: a linear layer and an embedding whose weights are two tensors of the same shape with the same values
    before the first step, both trained.

    Why it matters: tied weights share one tensor. A copy, such as from `nn.Parameter(embedding.weight.clone())` or
    `weight.data.copy_`, is tied at the first step alone: the model has more parameters than meant, and each half gets
    a part of the gradient.

    What to try: assign the parameter itself, `lm_head.weight = embedding.weight`, after everything that replaces
    parameters.

    When it is wrong: an output layer that is meant to begin as a copy and to be trained apart.

    Reference: https://arxiv.org/abs/1608.05859
    """

    kind = "untied_weights"
    of_setup = True
    noun = "untied weights"
    order = 1146
    question = "Are tied weights one tensor?"
    check_by_hand = "lm_head.weight is embedding.weight must be True."
    quantities = ("copied_embedding",)
    remedies = (Remedy(Action.TIE_WEIGHTS),)
    state_type = UntiedWeightsState

    def step(self, state: UntiedWeightsState, point: Point) -> tuple[UntiedWeightsState, Finding | None]:
        """Look at the first value."""
        if state.is_over or point.value < 1:
            return state, None
        state.is_over = True
        return state, self.finding(point, Severity.WARNING, UntiedWeightsFacts(point.place))
