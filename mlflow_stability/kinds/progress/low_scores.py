"""Says when a model was as good as never right, whatever its loss did."""

from __future__ import annotations

from dataclasses import dataclass

from mlflow_stability.curves.curves import RunCurves
from mlflow_stability.kinds.rule import Rule
from mlflow_stability.vocabulary.result import Action, Episode, Remedy, Severity


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

    def find(self, curves: RunCurves) -> list[Episode]:
        """One finding, in the score that was logged most often."""
        scores = [curve for curve in curves.scores if curve.finite.any()]
        if not scores:
            return []
        main = max(scores, key=lambda curve: len(curve.values))
        best = max(float(curve.values[curve.finite].max()) for curve in scores)
        lowest = min(float(curve.values[curve.finite].min()) for curve in scores)
        if len(main.values) < self.fewest_points or best > self.highest or lowest < 0:
            return []
        first, last = int(main.steps[0]), int(main.steps[-1])
        return [
            Episode(
                self.kind,
                Severity.WARNING,
                first,
                first,
                last,
                f"highest score {best:.2g} (threshold {self.highest:g}): {main.name} near zero in {len(main.values)} "
                f"evaluations, from step {first} to step {last}.",
                recovered=False,
                metric=main.name,
                place=main.place,
                attempt=main.attempt,
                evidence={"best": best, "evaluations": float(len(main.values))},
                remedies=self.remedies,
            )
        ]
