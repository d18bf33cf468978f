"""A loss that begins far above chance level, or never gets below it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from mlflow_stability.curves.curves import Curve, RunCurves
from mlflow_stability.detectors.finding_type import FindingType
from mlflow_stability.kinds.rule import Rule
from mlflow_stability.vocabulary.facts import Facts
from mlflow_stability.vocabulary.result import Action, Finding, Remedy, Severity


@dataclass(frozen=True, slots=True)
class ChanceFacts(Facts):
    """A cross entropy beside the logarithm of the number of classes."""

    kind: ClassVar[str] = "above_chance"

    first: float
    """The first loss."""
    last: float
    """Median of the last tenth of the losses."""
    chance: float
    """The loss of a model that gives each class the same probability, or answers the mean of the targets."""
    classes: int
    """Number of classes; 0 for a mean squared error."""
    is_stuck: bool
    """Whether the loss never got below chance level."""

    def sentence(self, step: int, unit: str = "step", /) -> str:
        """``The loss is 20.5 at step 1, 4.9 times chance level (4.16 for 64 classes), and 4.1 at the end: …``"""
        level = f"chance level ({self.chance:.3g} for {self.classes:,} classes)"
        if not self.classes:
            level = f"the variance of the targets ({self.chance:.3g})"
        if not self.is_stuck:
            return f"The loss is {self.first:.3g} at {unit} {step}, {self.first / self.chance:.2g} times {level}."
        far = f" It is {self.first:.3g} at {unit} {step}." if self.first >= 1.5 * self.chance else ""
        return f"The loss is {self.last:.3g} at the end, no better than {level}: nothing has been learnt.{far}"


@dataclass(frozen=True, slots=True)
class AboveChance(FindingType):
    """The loss begins far above chance level, or never gets below it.

    What it sees: a loss that is cross entropy alone, beside the logarithm of its number of classes, which the graph of
    the first losses shows (`chance_loss`); or a mean squared error alone, beside the variance of its targets
    (`target_variance`). A WARNING where the whole curve never got clearly below chance level, for classes from three
    on; INFO where only the first loss is many times chance level.

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
    remedies = (
        Remedy(Action.CHECK_INITIALISATION),
        Remedy(Action.CHECK_LABELS),
        Remedy(Action.RAISE_LEARNING_RATE),
    )


@dataclass(frozen=True, slots=True)
class AboveChanceRule(Rule):
    """The loss begins far above chance level, or never gets below it.

    What it sees: in a run of {fewest} steps or more, a loss whose medians over tenths of the run are all above {least}
    times chance level; or a first loss of {far} times chance level or more.

    Why it matters: nothing was learnt, or the initial weights are too large.

    What to try: check the initialisation and the scale of the inputs, then labels and the learning rate.

    When it is wrong: a warm-up longer than the run; labels that nothing predicts.

    Reference: https://karpathy.github.io/2019/04/25/recipe/
    """

    kind = "above_chance"
    order = 1132
    remedies = AboveChance.remedies

    fewest: int = 200
    """Minimum number of steps."""
    least: float = 0.97
    """Minimum ratio to chance level."""
    far: float = 3.0
    """Minimum ratio of the first loss to chance level."""

    def find(self, curves: RunCurves) -> list[Finding]:
        """The losses of the whole model for which chance level is known."""
        found = []
        for curve in curves.losses:
            finite = curve.values[curve.finite]
            if curve.part or not curve.has_level or len(finite) < self.fewest:
                continue
            for levels in (curves.chances, curves.target_variances):
                level = next((known for known in levels if known.attempt == curve.attempt), None)
                if level is not None:
                    chance = float(np.median(level.values))
                    classes = round(math.exp(chance)) if levels is curves.chances else 0
                    finding = self._judged(curve, chance, classes)
                    found += [] if finding is None else [finding]
        return found

    def _judged(self, curve: Curve, chance: float, classes: int) -> Finding | None:
        finite = curve.values[curve.finite]
        levels = [float(np.median(part)) for part in np.array_split(finite, 10)]
        is_stuck = min(levels) >= self.least * chance
        first = float(finite[0])
        if not chance > 0 or (not is_stuck and (first < self.far * chance or not classes)):
            return None
        severity = Severity.WARNING if is_stuck and (classes > 2 or not classes) else Severity.INFO
        facts = ChanceFacts(first, levels[-1], chance, classes, is_stuck)
        return self.finding(curve, severity, facts, int(curve.steps[0]), int(curve.steps[-1]))
