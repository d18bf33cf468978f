"""A loss function that is given probabilities where it expects logits or log-probabilities."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mlflow_stability.detectors.finding_type import FindingType
from mlflow_stability.vocabulary.facts import Facts, TextEnum
from mlflow_stability.vocabulary.result import Action, Remedy


class LossFunction(TextEnum):
    """A loss function, as PyTorch names it."""

    CROSS_ENTROPY = "cross_entropy"
    BINARY_CROSS_ENTROPY = "binary_cross_entropy_with_logits"
    NLL = "nll_loss"


class Activation(TextEnum):
    """What the input of a loss function comes from."""

    SOFTMAX = "softmax"
    SIGMOID = "sigmoid"
    RELU = "ReLU"
    TANH = "tanh"
    LINEAR = "linear layer"
    LOG_SOFTMAX = "log_softmax"
    """Over a dimension that is not that of the classes."""


@dataclass(frozen=True, slots=True)
class LossInputFacts(Facts):
    """What goes into a loss function."""

    kind: ClassVar[str] = "loss_input"

    function: LossFunction
    """The loss function."""
    activation: Activation
    """What its input comes from."""
    module: str = ""
    """The module of that activation; empty: it is called as a function, or there are several."""

    @property
    def expected(self) -> str:
        """What the function expects instead."""
        return "log-probabilities" if self.function is LossFunction.NLL else "logits"

    def sentence(self, _step: int, _unit: str = "step", /) -> str:
        """``Module 4 is a softmax, and its output goes into cross_entropy, which expects logits.``"""
        if self.activation is Activation.LOG_SOFTMAX:
            return f"log_softmax is taken over the rows of the batch; {self.function} expects it over the classes."
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
    `cross_entropy`, a softmax, sigmoid or ReLU before `binary_cross_entropy_with_logits`, and a softmax, linear layer
    or convolution before `nll_loss`, or a `log_softmax` over the batch. No value is read. Compiled losses are not seen.

    Why it matters: cross entropy applies the softmax itself. Of probabilities, which lie between 0 and 1, it makes
    nearly uniform ones: the loss cannot fall below a high value (1.46 for 10 classes), and gradients are small. The
    model trains, but slowly and to a worse result. After a ReLU no logit is negative. `nll_loss` on logits has no lower
    bound: it falls until values overflow.

    What to try: give the loss function what comes before the activation; take the probabilities in evaluation alone.
    `nll_loss` wants `log_softmax` over the classes.

    When it is wrong: a loss that is meant to be bounded.

    Reference: https://docs.pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html
    """

    kind = "loss_input"
    of_setup = True
    noun = "probabilities in place of logits"
    order = 1126
    question = "Does the loss function get logits?"
    check_by_hand = "Print the input of the loss: values between 0 and 1 that add up to 1 are probabilities."
    remedies = (Remedy(Action.REMOVE_ACTIVATION_BEFORE_LOSS),)


def remedies_for(facts: LossInputFacts) -> tuple[Remedy, ...]:
    """What to change about this input."""
    if facts.activation in (Activation.LINEAR, Activation.LOG_SOFTMAX):
        return (Remedy(Action.USE_CROSS_ENTROPY),)
    return LossInput.remedies
