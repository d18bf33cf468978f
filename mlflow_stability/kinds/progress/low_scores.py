"""Says when a model was as good as never right, whatever its loss did."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mlflow_stability.curves.curves import RunCurves
from mlflow_stability.kinds.rule import Rule
from mlflow_stability.vocabulary.facts import Facts
from mlflow_stability.vocabulary.result import Action, Finding, Remedy, Severity


@dataclass(frozen=True, slots=True)
class LowScoresFacts(Facts):
    """Scores that stayed near zero."""

    kind: ClassVar[str] = "low_scores"
    metrics = ("best", "evaluations")

    signal: str
    """The score that was logged most often."""
    best: float
    """The highest of all scores, as a share."""
    threshold: float
    """Up to which score that counts as zero."""
    evaluations: int
    """Number of values of the score."""
    last_step: int
    """The step of the last one."""

    def sentence(self, step: int, unit: str = "step", /) -> str:
        """``highest score 0.01 (threshold 0.03): map near zero in 50 evaluations, from step 1 to step 50.``"""
        return (
            f"highest score {self.best:.2g} (threshold {self.threshold:g}): {self.signal} near zero in "
            f"{self.evaluations} evaluations, from {unit} {step} to {unit} {self.last_step}."
        )


@dataclass(frozen=True, slots=True)
class ScoreRule(Rule):
    """Every score of the run stayed near zero.

    What it sees: all logged accuracies, precisions, recalls, F1, IoU and mean average precisions; none of their
    {fewest_points} or more values exceeded {highest:percent}.

    Why it matters: a loss can fall for a long time while a model learns only to predict nothing.

    What to try: inspect its predictions; check classes, labels and the threshold of a detection; start from pretrained
    weights; change the learning rate.

    When it is wrong: a task of very many classes, or one where the first correct answer comes late; scores of a rare
    class alone.

    Reference: Karpathy 2019, A recipe for training neural networks ("become one with the data").
    """

    kind = "plateau"
    order = 90
    remedies = (
        Remedy(Action.COMPARE_PREDICTIONS),
        Remedy(Action.CHECK_CLASSES_AND_LABELS),
        Remedy(Action.USE_PRETRAINED_WEIGHTS),
    )

    fewest_points: int = 40
    """Minimum number of evaluations."""
    highest: float = 0.03
    """Maximum score that counts as zero."""

    def find(self, curves: RunCurves) -> list[Finding]:
        """One finding, in the score that was logged most often."""
        scores = [curve for curve in curves.scores if curve.finite.any()]
        if not scores:
            return []
        main = max(scores, key=lambda curve: len(curve.values))
        best = max(float(curve.values[curve.finite].max()) for curve in scores)
        lowest = min(float(curve.values[curve.finite].min()) for curve in scores)
        if len(main.values) < self.fewest_points or best > self.highest or lowest < 0:
            return []
        last = int(main.steps[-1])
        facts = LowScoresFacts(main.name, best, self.highest, len(main.values), last)
        return [self.finding(main, Severity.WARNING, facts, main.steps[0], last)]
