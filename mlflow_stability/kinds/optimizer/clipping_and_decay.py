"""Findings about clipping and weight decay that are too strong."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.curves.curves import Curve, RunCurves
from mlflow_stability.detectors.finding_type import FindingType
from mlflow_stability.kinds.rule import Rule
from mlflow_stability.vocabulary.facts import Facts
from mlflow_stability.vocabulary.result import LOWER_RATE, Action, Finding, Remedy, Severity


@dataclass(frozen=True, slots=True)
class StrongClippingFacts(Facts):
    kind = "clipping_strong"

    before: float  # Median gradient norm before clipping
    after: float  # Median gradient norm after clipping
    share: float  # Share of steps that were clipped
    update_ratio: float  # Median update norm as a share of the weight norm

    def sentence(self, _step: int, unit: str = "step", /) -> str:
        return (
            f"Clipping divides gradients by {self.before / self.after:,.3g} in {self.share:.0%} of {unit}s "
            f"(norm {self.before:.3g}, clipped to {self.after:.3g}): a {unit} changes the weights by "
            f"{self.update_ratio:.2g} of their norm."
        )


@dataclass(frozen=True, slots=True)
class StrongClipping(FindingType):
    """Clipping leaves hardly anything of the gradients, and steps are tiny.

    What it sees: the whole curves of the gradient norm before and after clipping. Gradients are clipped in nearly all
    steps by a factor of 100 or more, and updates are tiny and follow the clipped norm, as under SGD. Adam and its kind
    divide the factor out again, and are not reported. Found at the end of a run, and by `diagnose`.

    Why it matters: each step has the length of the threshold times the learning rate, however large the gradient is.
    The training is as slow as at a learning rate lower by that factor.

    What to try: raise the threshold to the usual norm before clipping; `grad_norm` shows it.

    When it is wrong: a learning rate that was raised by the same factor on purpose; then updates are larger.

    Reference: https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.clip_grad_norm_.html
    """

    kind = "clipping_strong"
    of_setup = True
    noun = "too strong a clipping"
    order = 167
    question = "Is the clipping threshold near the usual gradient norm?"
    check_by_hand = "Print the norm that clip_grad_norm_ returns: its median should not be 100 times max_norm."
    remedies = (Remedy(Action.RAISE_CLIPPING_THRESHOLD),)


@dataclass(frozen=True, slots=True)
class StrongClippingRule(Rule):
    """Clipping leaves hardly anything of the gradients, and steps are tiny.

    What it sees: in a run of {fewest} steps or more, gradients that are clipped in {share:percent} of the steps, by a
    factor of {factor} or more (median), while updates are below {update_ratio} of the weight norm (median) and no
    larger than {momentum} times the learning rate times the clipped norm, as under SGD.

    When it is wrong: a learning rate that was raised by the same factor on purpose; then updates are larger.
    """

    kind = "clipping_strong"
    order = 167
    remedies = StrongClipping.remedies

    fewest: int = 100  # minimum number of steps with both norms
    share: float = 0.9  # minimum share of steps that were clipped
    factor: float = 100.0  # minimum ratio of the norm before clipping to that after
    update_ratio: float = 1e-4  # maximum update norm as a share of the weight norm
    momentum: float = 100.0
    """Maximum update norm in units of the learning rate times the clipped norm; 1 / (1 - momentum) under SGD."""

    def find(self, curves: RunCurves) -> list[Finding]:
        attempt = max((curve.attempt for curve in curves.clipped), default=0)
        norm, clipped, ratio, move, rate = (
            next((curve for curve in group if curve.attempt == attempt and not curve.part), None)
            for group in (curves.norms, curves.clipped, curves.updates, curves.moves, curves.rates)
        )
        if norm is None or clipped is None or ratio is None or move is None or rate is None:
            return []
        steps, before, after = _at_common_steps(norm, clipped)
        if len(steps) < self.fewest:
            return []
        share = float(np.mean(after < 0.99 * before))
        usual_ratio = float(np.median(ratio.values[ratio.finite]))
        facts = StrongClippingFacts(float(np.median(before)), float(np.median(after)), share, usual_ratio)
        _, moves, clipped_norms = _at_common_steps(move, clipped)
        _, rates, _ = _at_common_steps(rate, move)
        if not len(moves) or len(rates) != len(moves) or not facts.after > 0:
            return []
        follows = np.median(moves) <= self.momentum * np.median(rates) * np.median(clipped_norms)
        is_strong = share >= self.share and facts.before >= self.factor * facts.after
        if not follows or not is_strong or not facts.update_ratio < self.update_ratio:
            return []
        return [self.finding(norm, Severity.WARNING, facts, int(steps[0]), int(steps[-1]))]


def _at_common_steps(first: Curve, second: Curve) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
    """Return the steps at which both curves are finite, and their values at these steps."""
    steps, in_first, in_second = np.intersect1d(first.steps, second.steps, return_indices=True)
    first_values, second_values = first.values[in_first], second.values[in_second]
    finite = np.isfinite(first_values) & np.isfinite(second_values)
    return steps[finite], first_values[finite], second_values[finite]


@dataclass(frozen=True, slots=True)
class StrongDecayFacts(Facts):
    kind = "weight_decay_strong"

    weight_decay: float  # The weight decay of the parameter group
    learning_rate: float  # Its learning rate at this step
    is_l2: bool = False  # Whether Adam adds it to the gradient

    @property
    def shrinks_by(self) -> float:
        """Share of each weight that one step removes."""
        return self.weight_decay * self.learning_rate

    def sentence(self, _step: int, _unit: str = "step", /) -> str:
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

    What to try: lower the weight decay; 0.01 to 0.1 is usual for AdamW, 1e-5 to 5e-4 for SGD. Up to {usual}, lower the
    learning rate instead.

    When it is wrong: a group whose weights are meant to decay.

    Reference: https://arxiv.org/abs/1711.05101
    """

    strong: float = 0.01  # minimum share of each weight that one step removes
    strong_l2: float = 0.1  # minimum weight decay of Adam, which is part of the gradient
    usual: float = 0.1  # the largest usual weight decay; it is strong only where the learning rate is too high

    kind = "weight_decay_strong"
    of_setup = True
    noun = "strong decay of the weights"
    order = 166
    question = "Is the weight decay small?"
    check_by_hand = "Print learning rate times weight decay of each parameter group: above {strong} it is too large."
    remedies = (Remedy(Action.LOWER_WEIGHT_DECAY),)


OF_L2 = (Remedy(Action.USE_ADAMW),)  # what to try where Adam adds the decay to the gradient
OF_RATE = (LOWER_RATE,)  # what to try where the weight decay is usual
