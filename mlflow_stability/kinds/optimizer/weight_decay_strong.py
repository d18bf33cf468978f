"""A weight decay that shrinks the weights within a few steps, whatever the gradients say."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from mlflow_stability.detectors.finding_type import FindingType
from mlflow_stability.vocabulary.facts import Facts
from mlflow_stability.vocabulary.result import Action, Remedy


@dataclass(frozen=True, slots=True)
class StrongDecayFacts(Facts):
    """What a weight decay does in each step."""

    kind: ClassVar[str] = "weight_decay_strong"

    weight_decay: float
    """The weight decay of the parameter group."""
    learning_rate: float
    """Its learning rate at this step."""
    is_l2: bool = False
    """Whether Adam adds it to the gradient."""

    @property
    def shrinks_by(self) -> float:
        """The share of each weight that one step removes."""
        return self.weight_decay * self.learning_rate

    def sentence(self, _step: int, _unit: str = "step", /) -> str:
        """``Weight decay 10 at learning rate 0.003 removes 3% of each weight per step: …``"""
        if self.is_l2:
            return (
                f"Adam adds {self.weight_decay:g} times each weight to its gradient, and divides both by their size: "
                "the decay may outweigh the gradient. AdamW keeps them apart."
            )
        half = math.log(2) / -math.log1p(-min(self.shrinks_by, 0.99))
        return (
            f"Weight decay {self.weight_decay:g} at learning rate {self.learning_rate:g} removes "
            f"{100 * self.shrinks_by:.2g}% of each weight per step: without gradients, weights halve in "
            f"{max(1, round(half))} steps."
        )


@dataclass(frozen=True, slots=True)
class StrongWeightDecay(FindingType):
    """The weight decay shrinks the weights within a few steps.

    What it sees: the weight decay times the learning rate of a parameter group of SGD, AdamW or another optimizer with
    decoupled decay, at steps 10, 20, 100 and 1,000. A WARNING from {strong} on, where weights halve in 70 steps; usual
    are 1e-6 to 1e-3. Of Adam, which adds the decay to the gradient, a weight decay of {strong_l2} or more. Once a
    recording.

    Why it matters: the decay, and not the gradient, sets the weights. They stay so small that the outputs hardly
    depend on the input, and the loss stops near chance level.

    What to try: lower the weight decay; 0.01 to 0.1 is usual for AdamW, 1e-5 to 5e-4 for SGD.

    When it is wrong: a group whose weights are meant to decay.

    Reference: https://arxiv.org/abs/1711.05101
    """

    strong: float = 0.01
    """Minimum share of each weight that one step removes."""
    strong_l2: float = 0.1
    """Minimum weight decay of Adam, which is part of the gradient."""

    kind = "weight_decay_strong"
    of_setup = True
    noun = "too strong a weight decay"
    order = 166
    question = "Is the weight decay small?"
    check_by_hand = "Print learning rate times weight decay of each parameter group: above {strong} it is too large."
    remedies = (Remedy(Action.LOWER_WEIGHT_DECAY),)


OF_L2 = (Remedy(Action.USE_ADAMW),)
"""What to try where Adam adds the decay to the gradient."""
