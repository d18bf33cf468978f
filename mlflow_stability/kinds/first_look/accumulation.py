"""Gradients of several backward passes in a step: summed, thrown away, or of the same loss twice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mlflow_stability.detectors.finding_type import FindingType
from mlflow_stability.vocabulary.facts import Facts
from mlflow_stability.vocabulary.result import Action, Remedy, Severity


@dataclass(frozen=True, slots=True)
class AccumulationFacts(Facts):
    kind: ClassVar[str] = "accumulation_sum"

    passes: int  # Number of backward passes in a step

    def sentence(self, _step: int, unit: str = "step", /) -> str:
        return (
            f"Each {unit} adds up the gradients of {self.passes} mean losses, which are not divided by {self.passes}: "
            f"gradients are {self.passes} times those of the mean."
        )


@dataclass(frozen=True, slots=True)
class AccumulationSum(FindingType):
    """Gradients of micro-batches are summed, not averaged.

    What it sees: {passes} backward passes or more in each of {steps} steps, each from a mean of the same loss function
    that nothing divides. INFO, for the learning rate may be set for the sum; the cause of a divergence.

    Why it matters: gradients grow with the number of micro-batches. Under SGD the steps do, too; under Adam, clipping
    takes place more often.

    What to try: divide the loss by the number of micro-batches.

    When it is wrong: a learning rate that is set for the sum.

    Reference: https://docs.pytorch.org/docs/stable/notes/amp_examples.html#gradient-accumulation
    """

    passes: int = 4  # minimum number of backward passes in a step
    steps: int = 3  # number of steps

    kind = "accumulation_sum"
    of_setup = True
    noun = "gradients that are summed"
    order = 1143
    severities = (Severity.INFO,)
    question = "Are the losses of micro-batches divided by their number?"
    check_by_hand = "Look for loss / accumulation_steps before backward()."
    remedies = (Remedy(Action.DIVIDE_LOSS),)


@dataclass(frozen=True, slots=True)
class RepeatedBackwardFacts(Facts):
    kind: ClassVar[str] = "repeated_backward"

    def sentence(self, _step: int, unit: str = "step", /) -> str:
        return (
            f"backward() runs twice on the same loss in each {unit}: parameters that it reaches both times get twice "
            "the gradient."
        )


@dataclass(frozen=True, slots=True)
class RepeatedBackward(FindingType):
    """backward() runs several times on the same loss.

    What it sees: {steps} steps in a row in which a backward pass begins at the same tensor as the one before it. The
    loss is recorded once. Losses that a loss scaler multiplied are not compared.

    Why it matters: gradients add up, so that steps of SGD are as many times larger, and the graph is computed again.

    What to try: call `backward()` once on each loss.

    When it is wrong: passes with `inputs=`, each for other parameters.

    Reference: https://docs.pytorch.org/docs/stable/generated/torch.Tensor.backward.html
    """

    steps: int = 3  # number of steps in a row

    kind = "repeated_backward"
    of_setup = True
    noun = "a repeated backward pass"
    order = 1147
    severities = (Severity.INFO,)
    question = "Does backward() run once on each loss?"
    check_by_hand = "Count the calls of backward() in a step, and look for retain_graph=True."
    remedies = (Remedy(Action.CALL_BACKWARD_ONCE),)


@dataclass(frozen=True, slots=True)
class DiscardedGradientsFacts(Facts):
    kind: ClassVar[str] = "gradients_discarded"

    passes: int  # Number of backward passes in a step

    def sentence(self, _step: int, unit: str = "step", /) -> str:
        return (
            f"Each {unit} has {self.passes} backward passes from losses that are divided by {self.passes}, and "
            "gradients are cleared between them: only those of the last one are used."
        )


@dataclass(frozen=True, slots=True)
class GradientsDiscarded(FindingType):
    """Gradients are cleared between micro-batches, so that a step uses those of the last one only.

    What it sees: within the first 10 steps, {steps} steps in a row in which each backward pass begins at a loss that is
    divided by the number of these passes, `zero_grad()` cleared the gradients of all passes but the last, and the step
    got the gradients of the last one from PyTorch itself. A loss that nothing divides is left out, for gradients may be
    computed for a norm, for inputs, or for SAM; so is a loss that a loss scaler multiplied.

    Why it matters: most of the data and of the time is lost, and steps are as many times smaller under SGD.

    What to try: call `optimizer.zero_grad()` once for each step: right after `optimizer.step()`.

    When it is wrong: a script that copies the gradients of each pass before they are cleared, and uses the copies
    elsewhere.

    Reference: https://docs.pytorch.org/docs/stable/notes/amp_examples.html#gradient-accumulation
    """

    steps: int = 3  # number of steps in a row

    kind = "gradients_discarded"
    of_setup = True
    noun = "gradients that are thrown away"
    order = 1168
    question = "Do the gradients of all micro-batches reach the step?"
    check_by_hand = "Print the gradient norm after each backward pass of a step: it must not begin again each time."
    remedies = (Remedy(Action.CLEAR_GRADIENTS_ONCE),)
