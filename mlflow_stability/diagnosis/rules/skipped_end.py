"""Says when a run ended in steps that were all skipped."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mlflow_stability.detectors.optimizer import StepSkipped
from mlflow_stability.diagnosis.curves.curves import Curve, RunCurves
from mlflow_stability.diagnosis.rules.rule import Rule
from mlflow_stability.vocabulary.result import Episode, Severity
from mlflow_stability.vocabulary.text import counted


@dataclass(frozen=True, slots=True)
class SkippedEndRule(Rule):
    """The last steps of a run were all skipped.

    What it sees: the count of skipped steps rose with each of its last points, and by {fewest} or more.

    Why it matters: the training made no progress when it ended. A loss scaler that still searches for its scale after
    that many steps has not found one.

    What to try: train in bf16; start with a loss scale of 1024; lower the learning rate; inspect the skipped batches.

    When it is wrong: a run of a few steps that was stopped while a scaler with a very large first scale was searching.

    Reference: https://docs.pytorch.org/docs/stable/amp.html#gradient-scaling
    """

    kind = "step_skipped"
    order = 110
    remedies = StepSkipped.remedies

    fewest: int = 5
    """Minimum number of skipped steps in a row, up to the last."""

    def find(self, curves: RunCurves) -> list[Episode]:
        """The last stretch of skipped steps, in the last attempt alone."""
        last = max((curve.attempt for curve in curves.skips), default=0)
        judged = [curve for curve in curves.skips if curve.attempt == last]
        return [found for curve in judged if (found := self._of(curve)) is not None]

    def _of(self, curve: Curve) -> Episode | None:
        values, steps = curve.values[curve.finite], curve.steps[curve.finite]
        kept = np.flatnonzero(np.diff(values) <= 0)
        first = int(kept[-1]) + 1 if len(kept) else 0
        count = int(values[-1] - values[first]) if len(values) else 0
        if count < self.fewest:
            return None
        begun, ended = int(steps[min(first + 1, len(steps) - 1)]), int(steps[-1])
        return Episode(
            self.kind,
            Severity.WARNING,
            begun,
            ended,
            ended,
            f"all of the last {counted(count, 'step')} skipped, from step {begun} to step {ended} (threshold "
            f"{self.fewest}).",
            recovered=False,
            metric=curve.name,
            place=curve.place,
            attempt=curve.attempt,
            evidence={"skipped_of_recent": float(count), "skipped_steps": float(values[-1])},
            remedies=self.remedies,
        )
