"""Says when the loss swings to and fro from step to step."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise

from mlflow_stability.detectors.engine.detector import Detector, Point
from mlflow_stability.detectors.engine.finding import finding
from mlflow_stability.vocabulary.result.event import Event, Severity


@dataclass(slots=True)
class Swings:
    """The last losses."""

    recent: deque[float] = field(default_factory=deque)
    since: int = 0
    """How many have come since the last look."""
    said: bool = False


@dataclass(frozen=True, slots=True)
class Oscillation(Detector):
    """The loss swings to and fro from step to step.

    What it sees: among the last 256 losses more than 30 % are highest or lowest points between their neighbours, with
    a usual swing of more than 5 % of the level, and each step undoes a good part of the one before (the change from
    step to step is correlated at -0.7 or less; plain noise of mini-batches gives -0.5). One finding until it has
    calmed down.

    Why it matters: the steps are so large that the weights jump across the valley instead of going down in it.

    What to try: lower the learning rate 2-5 times; raise the momentum's damping; larger batches.

    When it is wrong: data that alternates between two kinds of batches; two losses that are logged as one. It spoke in
    none of 117 healthy trainings of 39 kinds (136,000 losses).

    Reference: Cohen et al., Gradient descent at the edge of stability (arXiv:2103.00065)
    """

    window: int = 256
    """How many losses are looked at."""
    every: int = 32
    """After how many new ones."""
    extremes: float = 0.3
    """The least share of them that are highest or lowest points."""
    swing: float = 0.05
    """The least median change from step to step, as a share of the level."""
    undone: float = -0.7
    """The highest correlation of one change with the next."""

    kind = "oscillation"
    noun = "oscillation"
    order = 230
    quantities = ("loss",)
    severities = (Severity.INFO,)
    experimental = True
    remedies = ("Lower the learning rate 2-5 times.", "Take larger batches.")

    def begin(self) -> Swings:
        """Start afresh, knowing nothing."""
        return Swings(deque(maxlen=self.window))

    def step(self, state: Swings, point: Point) -> tuple[Swings, Event | None]:
        """Look at the next loss."""
        if not point.finite:
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
        undone = _correlation(changes)
        if turns < self.extremes or undone > self.undone:
            state.said = False
            return state, None
        if state.said:
            return state, None
        state.said = True
        return state, finding(
            self,
            point,
            Severity.INFO,
            f"loss swings by {swing / level if level else math.inf:.0%} of its level from step to step up to step "
            f"{point.step}; {turns:.0%} of the last {self.window} values are turning points.",
            {"swing": swing, "level": level, "turning_points": turns, "correlation": undone},
        )


def _correlation(changes: list[float]) -> float:
    """Of each change with the next; an outlier counts as four usual changes at most."""
    most = 4 * sorted(map(abs, changes))[len(changes) // 2]
    capped = [min(max(each / most, -1.0), 1.0) for each in changes] if most > 0 else changes
    squares = math.fsum(each * each for each in capped)
    return math.fsum(a * b for a, b in pairwise(capped)) / squares if squares > 0 else 0.0
