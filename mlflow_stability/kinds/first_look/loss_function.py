"""Loss functions that get the wrong input, losses that are sums, and losses above chance level."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from mlflow_stability.curves.curves import Curve, RunCurves
from mlflow_stability.detectors.finding_type import FindingType
from mlflow_stability.kinds.rule import Rule, present
from mlflow_stability.vocabulary.facts import Facts, TextEnum
from mlflow_stability.vocabulary.result import RAISE_OR_LOWER_RATE, Action, Finding, Remedy, Severity


class LossFunction(TextEnum):
    """A loss function, as PyTorch names it."""

    CROSS_ENTROPY = "cross_entropy"
    BINARY_CROSS_ENTROPY = "binary_cross_entropy_with_logits"
    SIGMOID = "the sigmoid of binary_cross_entropy"
    NLL = "nll_loss"
    CTC = "ctc_loss"
    KL = "kl_div"
    OTHER = "loss"


class Activation(TextEnum):
    """What the input of a loss function comes from."""

    SOFTMAX = "softmax"
    SIGMOID = "sigmoid"
    RELU = "ReLU"
    TANH = "tanh"
    LINEAR = "linear layer"
    LOG_SOFTMAX = "log_softmax"  # over another dimension than the classes
    ONE_VALUE = "softmax over one value"  # which is always 1
    ROUNDED = "rounding"  # which has a gradient of zero
    LOG_TARGET = "log_softmax as target"  # whose logarithm is NaN


OF_LOGITS = (LossFunction.CROSS_ENTROPY, LossFunction.BINARY_CROSS_ENTROPY, LossFunction.SIGMOID)


@dataclass(frozen=True, slots=True)
class LossInputFacts(Facts):
    kind: ClassVar[str] = "loss_input"

    function: LossFunction  # The loss function
    activation: Activation  # What its input comes from
    module: str = ""  # The module of that activation; empty: it is called as a function, or there are several

    @property
    def expected(self) -> str:
        """What the function expects instead."""
        return "logits" if self.function in OF_LOGITS else "log-probabilities"

    def sentence(self, _step: int, _unit: str = "step", /) -> str:
        if self.activation is Activation.LOG_SOFTMAX:
            return "log_softmax is taken over another dimension than the classes, so that no row adds up to 1."
        if self.activation is Activation.ONE_VALUE:
            return "The loss takes a softmax over a dimension of size 1: it is always 1 and has no gradient."
        if self.activation is Activation.ROUNDED:
            return "The loss is computed from rounded outputs: the gradient of rounding is zero, and nothing is learnt."
        if self.activation is Activation.LOG_TARGET:
            return (
                "The target of kl_div is a log_softmax: the loss takes the logarithm of negative numbers, NaN. "
                "Input and target are exchanged, or log_target=True is missing."
            )
        what = (
            f"Module {self.module} is a {self.activation}, and its output"
            if self.module
            else f"The output of a {self.activation}"
        )
        return f"{what} goes into {self.function}, which expects {self.expected}."


@dataclass(frozen=True, slots=True)
class LossInput(FindingType):
    """The loss function is given probabilities where it expects logits, or another input that it does not expect.

    What it sees: in the graphs of the first losses, a softmax, sigmoid, tanh or ReLU whose output goes straight into
    `cross_entropy`, a softmax, sigmoid or ReLU before `binary_cross_entropy_with_logits` or the sigmoid of
    `binary_cross_entropy`, and a softmax, linear layer or convolution before `nll_loss` or `ctc_loss`, a softmax before
    `kl_div` or a `log_softmax` as its target, or a `log_softmax` over another dimension than the classes before
    `nll_loss`, `gather` or an index; a softmax over a dimension of size 1 near the loss, and `round`, `floor`, `ceil`
    or `sign` before a loss function. No value is read. Compiled losses are not seen.

    Why it matters: cross entropy applies the softmax itself. Of probabilities, which lie between 0 and 1, it makes
    nearly uniform ones: the loss cannot fall below a high value (1.46 for 10 classes), and gradients are small. The
    model trains, but slowly and to a worse result. After a ReLU no logit is negative. `nll_loss` on logits has no lower
    bound: it falls until values overflow. A softmax over one value is always 1, and nothing is learnt. `kl_div` takes
    the logarithm of its target.

    What to try: give the loss function what comes before the activation; take the probabilities in evaluation alone.
    `nll_loss` and `kl_div` want `log_softmax` over the classes, and a single output the sigmoid. `kl_div` takes the
    prediction first and the target second.

    When it is wrong: a loss that is meant to be bounded.

    Reference: https://docs.pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html
    """

    kind = "loss_input"
    of_setup = True
    noun = "an input that the loss function does not expect"
    order = 1126
    question = "Does the loss function get logits?"
    check_by_hand = "Print the input of the loss: values between 0 and 1 that add up to 1 are probabilities."
    remedies = (Remedy(Action.REMOVE_ACTIVATION_BEFORE_LOSS),)


def remedies_for(facts: LossInputFacts) -> tuple[Remedy, ...]:
    """What to change about this input."""
    if facts.activation is Activation.ONE_VALUE:
        return (Remedy(Action.USE_SIGMOID),)
    if facts.activation is Activation.ROUNDED:
        return (Remedy(Action.ROUND_AFTER_LOSS),)
    if facts.activation is Activation.LOG_TARGET:
        return (Remedy(Action.EXCHANGE_KL_ARGUMENTS),)
    if facts.function in (LossFunction.CTC, LossFunction.KL):
        return (Remedy(Action.TAKE_LOG_SOFTMAX),)
    if facts.activation in (Activation.LINEAR, Activation.LOG_SOFTMAX):
        return (Remedy(Action.USE_CROSS_ENTROPY),)
    return LossInput.remedies


@dataclass(frozen=True, slots=True)
class LossBroadcastFacts(Facts):
    """The shapes of a prediction and of its difference from the target."""

    kind: ClassVar[str] = "loss_broadcast"

    rows: int  # Number of predictions in the batch
    is_column: bool  # Whether the prediction, not the target, has a second dimension of size 1
    is_product: bool = False  # Whether they are multiplied, such as log-probabilities with advantages

    def sentence(self, _step: int, _unit: str = "step", /) -> str:
        flat, column = f"({self.rows},)", f"({self.rows}, 1)"
        prediction, target = (column, flat) if self.is_column else (flat, column)
        if self.is_product:
            return (
                f"The loss multiplies values of shape {prediction} by constants of shape {target}: it is a product of "
                f"all {self.rows} x {self.rows} pairs, and its mean that of two means."
            )
        return (
            f"The prediction has shape {prediction} and the target {target}: the loss compares all "
            f"{self.rows} x {self.rows} pairs, not each prediction with its own target."
        )


@dataclass(frozen=True, slots=True)
class LossBroadcast(FindingType):
    """The loss compares every prediction with every target.

    What it sees: in the graphs of the first losses, a prediction of shape (N, 1) or (N,) whose difference from the
    target, or whose product with a constant such as an advantage, has shape (N, N). No value is read. Compiled losses
    are not seen.

    Why it matters: PyTorch broadcasts (N, 1) and (N,) to (N, N). The best answer is then the mean of the targets for
    each input: the loss falls to the variance of the targets, and the model learns nothing else. A policy gets the mean
    advantage for each action, and learns nothing.

    What to try: give both the same shape.

    When it is wrong: a loss over all pairs that is meant, written without `unsqueeze` or `view`.

    Reference: https://docs.pytorch.org/docs/stable/notes/broadcasting.html
    """

    kind = "loss_broadcast"
    of_setup = True
    noun = "a loss over all pairs"
    order = 1127
    question = "Do prediction and target have the same shape?"
    check_by_hand = "Print the shapes of prediction and target: they must be equal."
    remedies = (Remedy(Action.MATCH_SHAPES),)


@dataclass(frozen=True, slots=True)
class LossSumFacts(Facts):
    kind: ClassVar[str] = "loss_sum"

    values: int  # Number of values in the sum

    def sentence(self, _step: int, _unit: str = "step", /) -> str:
        return (
            f"The loss is the sum of {self.values:,} values, and nothing divides it: gradients are {self.values:,} "
            "times those of the mean."
        )


@dataclass(frozen=True, slots=True)
class LossSum(FindingType):
    """The loss is a sum over the batch, not a mean.

    What it sees: in the graphs of the first losses, a loss function with `reduction="sum"`, or a sum of squared or
    absolute differences, over {least} values or more, that nothing divides. INFO, for the learning rate may be set for
    the sum; the cause of a divergence, except with optimizers that scale their own steps. Compiled losses are not seen.

    Why it matters: gradients grow with the number of values. Under SGD the steps do, too, and a usual learning rate is
    as many times too high.

    What to try: average the loss, or divide the learning rate by the number of values.

    When it is wrong: a learning rate that is set for the sum.

    Reference: https://docs.pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html
    """

    least: int = 8  # minimum number of values

    kind = "loss_sum"
    of_setup = True
    noun = "a loss that is a sum"
    order = 1148
    severities = (Severity.INFO,)
    question = "Is the loss a mean over the batch?"
    check_by_hand = "Halve the batch: the loss and the gradient norm of a mean stay, those of a sum are halved."
    remedies = (Remedy(Action.AVERAGE_LOSS),)


@dataclass(frozen=True, slots=True)
class ChanceFacts(Facts):
    """A cross entropy beside the logarithm of the number of classes."""

    kind: ClassVar[str] = "above_chance"

    first: float  # The first loss
    last: float  # Median of the last tenth of the losses
    chance: float  # The loss of a model that gives each class the same probability, or answers the mean of the targets
    classes: int  # Number of classes; 0 for a mean squared error
    is_stuck: bool  # Whether the loss never got below chance level

    def sentence(self, step: int, unit: str = "step", /) -> str:
        level = f"chance level ({self.chance:.3g} for {self.classes:,} classes)"
        if not self.classes:
            level = f"the variance of the targets ({self.chance:.3g})"
        if not self.is_stuck:
            last = f"; it is {self.last:.3g} at the end" if self.last >= self.chance else ""
            return f"The loss is {self.first:.3g} at {unit} {step}, {self.first / self.chance:.2g} times {level}{last}."
        far = f" It is {self.first:.3g} at {unit} {step}." if self.first >= 1.5 * self.chance else ""
        return f"The loss is {self.last:.3g} at the end, no better than {level}: nothing has been learnt.{far}"


@dataclass(frozen=True, slots=True)
class AboveChance(FindingType):
    """The loss begins far above chance level, or never gets below it.

    What it sees: a loss that is cross entropy alone, beside the logarithm of its number of classes, which the graph of
    the first losses shows (`chance_loss`); or a mean squared error alone, beside the variance of its targets
    (`target_variance`). A WARNING where the whole curve never got clearly below chance level, for classes from three
    on, or where a cross entropy still is many times chance level at the end; INFO where only its first loss is.

    Why it matters: a model without knowledge gives each class the same probability, or the mean of the targets. A first
    loss far above that means large initial weights, or inputs or targets of a wrong scale. A last loss at chance level
    means that nothing was learnt.

    What to try: check the initialisation and the scale of the inputs, then labels and the learning rate.

    When it is wrong: a warm-up longer than the run; labels that nothing predicts.

    Reference: https://karpathy.github.io/2019/04/25/recipe/
    """

    kind = "above_chance"
    of_setup = True
    noun = "a loss above chance level"
    order = 1132
    severities = (Severity.INFO, Severity.WARNING)
    question = "Is the first loss near the logarithm of the number of classes?"
    check_by_hand = "Compare the first loss with math.log(number of classes)."
    remedies = (Remedy(Action.CHECK_INITIALISATION), Remedy(Action.CHECK_LABELS), RAISE_OR_LOWER_RATE)


@dataclass(frozen=True, slots=True)
class AboveChanceRule(Rule):
    """The loss begins far above chance level, or never gets below it.

    What it sees: in a run of {fewest} steps or more, a loss whose medians over tenths of the run are all above {least}
    times chance level; or a first loss of {far} times chance level or more, which is a WARNING where all these medians
    are as high. A loss that would be below {falling} times chance level after half as many steps again, at the pace of
    its end, counts as falling.

    When it is wrong: a warm-up longer than the run; labels that nothing predicts.
    """

    kind = "above_chance"
    order = 1132
    remedies = AboveChance.remedies

    fewest: int = 200  # minimum number of steps
    least: float = 0.97  # minimum ratio to chance level
    far: float = 3.0  # minimum ratio of the first loss to chance level
    falling: float = 0.8  # ratio to chance level below which a loss is not stuck that falls on like this

    def find(self, curves: RunCurves) -> list[Finding]:
        findings: list[Finding | None] = []
        for curve in curves.losses:
            finite = curve.values[curve.finite]
            if curve.part or not curve.has_level or len(finite) < self.fewest:
                continue
            for levels in (curves.chances, curves.target_variances):
                of_curve = (curve.attempt, curve.place)
                level = next((level for level in levels if (level.attempt, level.place) == of_curve), None)
                if level is not None:
                    chance = float(np.median(level.values))
                    classes = round(math.exp(chance)) if levels is curves.chances else 0
                    findings.append(self._judged(curve, chance, classes))
        return present(findings)

    def _judged(self, curve: Curve, chance: float, classes: int) -> Finding | None:
        finite = curve.values[curve.finite]
        levels = [float(np.median(part)) for part in np.array_split(finite, 10)]
        soon = levels[-1] - 2.5 * (levels[-3] - levels[-1])  # after half as many steps again, at the pace of the end
        is_stuck = min(levels) >= self.least * chance and soon >= self.falling * chance
        first = float(finite[0])
        if not chance > 0 or (not is_stuck and (first < self.far * chance or not classes)):
            return None
        is_far = bool(classes) and min(first, *levels) >= self.far * chance  # however fast it falls
        severity = Severity.WARNING if is_far or (is_stuck and classes != 2) else Severity.INFO
        facts = ChanceFacts(first, levels[-1], chance, classes, is_stuck)
        finding = self.finding(curve, severity, facts, int(curve.steps[0]), int(curve.steps[-1]))
        if is_stuck and not classes and levels[-1] >= self.far * chance:  # the predictions miss the mean of the targets
            return replace(finding, remedies=(Remedy(Action.STANDARDISE_TARGETS), *self.remedies))
        return finding
