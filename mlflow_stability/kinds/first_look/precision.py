"""Detect steps that precision makes smaller or undoes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mlflow_stability.detectors.detector import Point
from mlflow_stability.detectors.streak import Streak, StreakDetector
from mlflow_stability.vocabulary.facts import Facts
from mlflow_stability.vocabulary.result import Action, Remedy


@dataclass(frozen=True, slots=True)
class EpsilonFacts(Facts):
    kind: ClassVar[str] = "epsilon_large"

    ratio: float  # Root mean square of the gradients over epsilon

    def sentence(self, step: int, unit: str = "step", /) -> str:
        return (
            f"Gradients are {self.ratio:.2g} times Adam's epsilon at {unit} {step} (RMS): its steps are that much "
            "smaller than the learning rate."
        )


@dataclass(frozen=True, slots=True)
class EpsilonLarge(StreakDetector):
    """Gradients are far below Adam's epsilon.

    What it sees: the root mean square of all gradients over the epsilon of an optimizer of Adam's family, at steps 10,
    20, 100 and 1,000. A WARNING where it is {ratio} or less, and not zero, at {looks} of them in a row.

    Why it matters: Adam divides a gradient by its usual size plus epsilon. Where epsilon is much larger, the step is
    smaller than the learning rate by that ratio, and follows the size of the gradient, as under SGD.

    What to try: lower eps, 1e-8 is usual; where gradients are that small, look for a loss that is divided or multiplied
    by a wrong number.

    When it is wrong: a learning rate that was raised for this epsilon on purpose.

    Reference: https://docs.pytorch.org/docs/stable/generated/torch.optim.Adam.html
    """

    ratio: float = 0.03  # maximum ratio of the gradients to epsilon
    looks: int = 3  # number of looks in a row

    kind = "epsilon_large"
    of_setup = True
    noun = "gradients below epsilon"
    order = 1138
    question = "Are gradients larger than Adam's epsilon?"
    check_by_hand = "Compare grad.pow(2).mean().sqrt() with eps: it should be far above."
    quantities = ("gradient_over_epsilon",)
    in_a_row = "looks"
    remedies = (Remedy(Action.LOWER_EPS_OF_ADAM), Remedy(Action.CHECK_SCALE_OF_LOSS))

    def facts(self, _state: Streak, point: Point) -> Facts | None:
        return EpsilonFacts(point.value) if 0 < point.value <= self.ratio else None


@dataclass(frozen=True, slots=True)
class UnderflowFacts(Facts):
    kind: ClassVar[str] = "gradient_underflow"

    largest: float  # The largest one
    smallest_normal: float  # The threshold

    def sentence(self, step: int, unit: str = "step", /) -> str:
        return (
            f"The largest fp16 gradient is {self.largest:.2g} at {unit} {step}: below {self.smallest_normal:.2g} "
            "digits are lost, below 6e-08 a gradient is 0."
        )


@dataclass(frozen=True, slots=True)
class GradientUnderflow(StreakDetector):
    """Gradients in fp16 are too small for it, and no loss scaler is used.

    What it sees: the largest gradient of weights in fp16 at steps 10, 20, 100 and 1,000, where no `GradScaler` scales
    them. A WARNING where it is below {smallest_normal}, the smallest normal number of fp16, at {looks} of them in a
    row.

    Why it matters: such gradients lose digits, and those below 6e-8 are zero: the weights are not changed by them.

    What to try: keep weights in float32 and use torch.autocast with torch.amp.GradScaler, which refuses gradients in
    fp16; or train in bf16.

    When it is wrong: a loss that is learnt already.

    Reference: https://docs.pytorch.org/docs/stable/amp.html#gradient-scaling
    """

    smallest_normal: float = 6.1e-5  # the smallest normal number of fp16
    looks: int = 3  # number of looks in a row

    kind = "gradient_underflow"
    of_setup = True
    noun = "fp16 gradients that underflow"
    order = 1139
    question = "Are fp16 gradients large enough?"
    check_by_hand = "Print the largest fp16 gradient: it should be far above {smallest_normal}."
    quantities = ("fp16_gradient_max",)
    in_a_row = "looks"
    remedies = (Remedy(Action.USE_GRAD_SCALER),)

    def facts(self, _state: Streak, point: Point) -> Facts | None:
        return UnderflowFacts(point.value, self.smallest_normal) if point.value < self.smallest_normal else None


@dataclass(frozen=True, slots=True)
class UpdatesLostFacts(Facts):
    kind: ClassVar[str] = "updates_lost"

    share: float  # Share of weights with a gradient that the step left as they were

    def sentence(self, step: int, unit: str = "step", /) -> str:
        return (
            f"{100 * self.share:.3g}% of the weights in half precision are the same after {unit} {step}: their "
            "updates round to nothing."
        )


@dataclass(frozen=True, slots=True)
class UpdatesLost(StreakDetector):
    """Most updates of weights in half precision round to nothing.

    What it sees: of samples of weights in bf16 or fp16 that have a gradient, the share that a step leaves as they were,
    at steps 20, 100 and 1,000, where the learning rate has not risen since the look before. A WARNING where it is
    {share} or more at {looks} of them in a row. Optimizers that keep more than Adam or SGD do are left out: they may
    make up for it.

    Why it matters: an update below half a unit in the last place of a weight is lost. bf16 has 8 bits: a weight of 0.1
    cannot change by less than 0.0002.

    What to try: keep weights in float32 and use autocast, or an optimizer with stochastic rounding or master weights.

    When it is wrong: a learning rate that is to be tiny.

    Reference: https://arxiv.org/abs/2010.06192
    """

    share: float = 0.9  # minimum share of weights that did not change
    looks: int = 2  # number of looks in a row

    kind = "updates_lost"
    of_setup = True
    noun = "updates that round to nothing"
    order = 1140
    question = "Do steps change weights in half precision?"
    check_by_hand = "Compare a weight before and after a step: most of its values should change."
    quantities = ("updates_lost",)
    in_a_row = "looks"
    remedies = (Remedy(Action.KEEP_WEIGHTS_IN_FLOAT32),)

    def facts(self, _state: Streak, point: Point) -> Facts | None:
        return UpdatesLostFacts(point.value) if point.value >= self.share else None
