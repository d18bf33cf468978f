"""Says when the loss swings to and fro from step to step."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise
from typing import ClassVar

from mlflow_stability.detectors.detector import Detector, Point
from mlflow_stability.detectors.finding_type import Instability
from mlflow_stability.vocabulary.facts import Facts
from mlflow_stability.vocabulary.result import LOWER_RATE_2_TO_5, Action, Finding, Remedy, Severity


@dataclass(slots=True)
class OscillationState:
    """The last losses."""

    recent: deque[float] = field(default_factory=deque)
    since: int = 0
    """How many have come since the last look."""
    said: bool = False


@dataclass(frozen=True, slots=True)
class OscillationFacts(Facts):
    """A loss that swings to and fro from step to step."""

    kind: ClassVar[str] = "oscillation"
    metrics = ("swing", "level", "turning_points", "correlation")

    swing: float
    """Median change from step to step, in the unit of the loss."""
    level: float
    """Median size of the loss, in its unit."""
    turning_points: float
    """Share of the losses that are local maxima or minima."""
    correlation: float
    """Correlation of one change with the next."""
    threshold: float
    """From which swing on, as a share of the loss, it oscillates."""
    values: int
    """Number of losses that were judged."""

    def sentence(self, step: int, unit: str = "step", /) -> str:
        """``loss oscillates at step 400: median change 12% of the loss (threshold 5%); 90% of the last 256 …``"""
        share = self.swing / self.level if self.level else math.inf
        return (
            f"loss oscillates at {unit} {step}: median change {share:.0%} of the loss (threshold "
            f"{self.threshold:.0%}); {self.turning_points:.0%} of the last {self.values} values are turning points."
        )


@dataclass(frozen=True, slots=True)
class Oscillation(Detector):
    """The loss oscillates from step to step.

    What it sees: every {every} losses, more than {extremes:percent} of the last {window} losses are local maxima or
    minima, and the median change is more than {swing:percent} of the loss. Each step undoes much of the one before:
    consecutive changes correlate at {correlation} or less (mini-batch noise alone gives -0.5). The finding ends when
    the oscillation does.

    Why it matters: the steps are too large, so that the weights jump across the minimum.

    What to try: lower the learning rate by a factor of 2 to 5; lower the momentum; use larger batches.

    When it is wrong: data that alternates between two kinds of batches, or two losses logged as one. No finding in 117
    healthy trainings of 39 kinds (136,000 losses).

    Reference: Cohen et al., Gradient descent at the edge of stability (arXiv:2103.00065)
    """

    window: int = 256
    """Number of losses that are judged together."""
    every: int = 32
    """Number of new losses between two judgements."""
    extremes: float = 0.3
    """Minimum share of local maxima and minima."""
    swing: float = 0.05
    """Minimum median change from step to step, as a share of the loss."""
    correlation: float = -0.7
    """Maximum correlation of one change with the next."""

    kind = "oscillation"
    instability = Instability.HARMFUL
    noun = "oscillation"
    order = 230
    quantities = ("loss",)
    severities = (Severity.INFO,)
    experimental = True
    remedies = (LOWER_RATE_2_TO_5, Remedy(Action.USE_LARGER_BATCHES))

    def begin(self) -> OscillationState:
        """Start afresh, knowing nothing."""
        return OscillationState(deque(maxlen=self.window))

    def step(self, state: OscillationState, point: Point) -> tuple[OscillationState, Finding | None]:
        """Look at the next loss."""
        if not point.finite or not point.has_level:
            return state, None
        state.recent.append(point.value)
        state.since += 1
        if state.since < self.every or len(state.recent) < self.window:
            return state, None
        state.since = 0
        losses = list(state.recent)
        level = sorted(abs(each) for each in losses)[len(losses) // 2]
        changes = [after - before for before, after in pairwise(losses)]
        swing = sorted(map(abs, changes))[len(changes) // 2]
        if not swing > self.swing * level or not math.isfinite(swing):
            state.said = False
            return state, None
        turns = sum(before * after < 0 for before, after in pairwise(changes)) / len(losses)
        correlation = _correlation(changes)
        if turns < self.extremes or correlation > self.correlation:
            state.said = False
            return state, None
        if state.said:
            return state, None
        state.said = True
        facts = OscillationFacts(swing, level, turns, correlation, self.swing, self.window)
        return state, self.finding(point, Severity.INFO, facts)


def _correlation(changes: list[float]) -> float:
    """Of each change with the next; an outlier counts as four usual changes at most."""
    most = 4 * sorted(map(abs, changes))[len(changes) // 2]
    capped = [min(max(each / most, -1.0), 1.0) for each in changes] if most > 0 else changes
    squares = math.fsum(each * each for each in capped)
    return math.fsum(a * b for a, b in pairwise(capped)) / squares if squares > 0 else 0.0
