"""Says when the return of a policy has fallen back to where it began, and stayed there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from mlflow_stability.curves.curves import Curve, RunCurves, median_deviation
from mlflow_stability.kinds.rule import Rule
from mlflow_stability.vocabulary.facts import Facts
from mlflow_stability.vocabulary.result import LOWER_RATE_2_TO_5, Action, Finding, Remedy, Severity


@dataclass(frozen=True, slots=True)
class ReturnFallFacts(Facts):
    """A return that rose, fell back to where it began, and stayed there."""

    kind: ClassVar[str] = "return_fall"

    signal: str
    """The return, by the name that the log gives it."""
    start: float
    """Its level at the start, in its unit."""
    best: float
    """Its best level."""
    last: float
    """Its level since it fell."""

    def sentence(self, step: int, unit: str = "step", /) -> str:
        """``return fell from about 200 to 21, where it began (20), and stayed there from step 400 to the end.``"""
        return (
            f"{self.signal} fell from about {self.best:.4g} to {self.last:.4g}, where it began ({self.start:.4g}), and "
            f"stayed there from {unit} {step} to the end."
        )


@dataclass(frozen=True, slots=True)
class ReturnFallRule(Rule):
    """The return of a policy rose, fell back to where it began, and stayed there to the end.

    What it sees: a metric whose name says that it is a reward or a return, with {fewest_points} points or more. Its
    best stretch, {stretch:percent} of the points, is {clear_gain} median deviations above the first one. Of the last
    {tails[1]:percent} of the points, and at least {fewest_last}, {back:percent} are back at the start, within
    {left:percent} of what had been gained. From {tails[0]:percent} of the points on it is a warning.

    Why it matters: a policy that has collapsed explores no more, and does not learn again by itself.

    What to try: keep the policy of the best return; lower the learning rate by a factor of 2 to 5; raise the entropy
    bonus; clip gradients.

    When it is wrong: a harder environment from some step on, or an evaluation of another policy under the same name.

    Reference: Dohare et al. 2023, Overcoming policy collapse in deep reinforcement learning.
    """

    kind = "divergence"
    order = 46
    severities = (Severity.INFO, Severity.WARNING)
    remedies = (
        Remedy(Action.KEEP_BEST_POLICY),
        LOWER_RATE_2_TO_5,
        Remedy(Action.RAISE_ENTROPY_BONUS),
        Remedy(Action.CLIP_GRADIENTS),
    )

    fewest_points: int = 60
    """Minimum number of points."""
    fewest_last: int = 10
    """Minimum number of points at the end."""
    tails: tuple[float, float] = (0.1, 0.05)
    """Shares of the points that count as the end: of the first it is a warning, of the second information."""
    stretch: float = 0.1
    """Share of the points in the first and in the best stretch."""
    clear_gain: float = 1.5
    """Minimum gain from the first to the best stretch, in median deviations of each of them."""
    left: float = 0.1
    """Maximum share of the gain that is left."""
    back: float = 0.9
    """Share of the last points that must be back."""

    def find(self, curves: RunCurves) -> list[Finding]:
        """The first return that fell so, of several that mean the same."""
        found = (self._of(curve) for curve in curves.returns)
        return [each for each in found if each is not None][:1]

    def _of(self, curve: Curve) -> Finding | None:
        values, steps = curve.values[curve.finite], curve.steps[curve.finite]
        count = len(values)
        if count < self.fewest_points:
            return None
        width = max(6, round(self.stretch * count))
        windows = np.lib.stride_tricks.sliding_window_view(values, width)
        at = int(np.argmax(np.median(windows, axis=1)))
        start, best = float(np.median(values[:width])), float(np.median(windows[at]))
        spread = max(median_deviation(values[:width]), median_deviation(windows[at]))
        gain = best - start
        if gain <= 0 or gain < self.clear_gain * spread:
            return None
        limit = start + self.left * gain
        for tail, severity in zip(self.tails, (Severity.WARNING, Severity.INFO), strict=True):
            last = values[-max(self.fewest_last, round(tail * count)) :]
            if len(last) <= count - at - width and float(np.quantile(last, self.back)) <= limit:
                high = np.flatnonzero(values[at + width :] > limit)
                first = min(at + width + (int(high[-1]) + 1 if len(high) else 0), count - self.fewest_last)
                facts = ReturnFallFacts(curve.name, start, best, float(np.median(values[first:])))
                return self.finding(curve, severity, facts, steps[first], steps[-1])
        return None
