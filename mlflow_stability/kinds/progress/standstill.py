"""Say when a loss fell and then did not change for a large part of the run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from mlflow_stability.curves.curves import Curve, RunCurves
from mlflow_stability.curves.levels import Levels, levels_of
from mlflow_stability.detectors.finding_type import Moves
from mlflow_stability.kinds.rule import Rule
from mlflow_stability.vocabulary.facts import Facts
from mlflow_stability.vocabulary.result import RAISE_OR_LOWER_RATE, Action, Finding, Remedy, Severity


@dataclass(frozen=True, slots=True)
class StandstillFacts(Facts):
    """A loss that fell and then did not change to the end of the run."""

    kind: ClassVar[str] = "standstill"
    metrics: ClassVar[Mapping[str, str]] = {"last": "last", "start": "start", "unchanged": "steps"}

    signal: str
    """The loss, by the name that the log gives it."""
    last: float
    """Its level at the end, in the unit of the loss."""
    start: float
    """Its level at the start, in the unit of the loss."""
    steps: int
    """Number of steps in which it has not fallen."""
    share: float
    """Share of the run."""
    threshold: float
    """Relative fall below which it did not change."""
    other: str = ""
    """Of a validation loss: the training loss that fell meanwhile."""

    def sentence(self, step: int, unit: str = "step", /) -> str:
        """``loss has not fallen since step 6000: about 2.54 for 14,000 steps (70% of the run, fall below 1%); …``"""
        unchanged = (
            f"{self.signal} has not fallen since {unit} {step}: about {self.last:.4g} for {self.steps:,} {unit}s "
            f"({self.share:.0%} of the run, fall below {self.threshold:.0%}); it had fallen from {self.start:.4g}"
        )
        return f"{unchanged}, and {self.other} fell on." if self.other else f"{unchanged}."


@dataclass(frozen=True, slots=True)
class StandstillRule(Rule):
    """The loss fell and then did not change for a large part of the run.

    What it sees: a whole curve of {fewest_points} points or more that fell by {fell:percent} or more, and then, for
    {share:percent} of the run or more up to the end, by less than {gain:percent} from the first to the last third of
    that time, known to {known:percent}. It is a warning for {long_share:percent} of the run and {long_steps} steps or
    more, where {left:percent} or more of its start is left; else INFO. Not where the logged learning rate was below
    {decayed:percent} of its highest value in the middle of that time, nor where the loss is below
    {loss_fall.LEARNT:percent} of its start. A validation loss that does not change while the training loss falls is
    INFO.

    Why it matters: these steps cost time and nothing was learnt in them.

    What to try: lower the learning rate, for a loss often falls again after that; else stop here, use more data or a
    larger model.

    When it is wrong: a loss that has reached what its noise allows. Compare it with other runs.

    Reference: https://github.com/google-research/tuning_playbook
    """

    kind = "plateau"
    order = 81
    by_sensitivity: ClassVar[Mapping[str, Moves]] = {"gain": "inverse"}
    remedies = (RAISE_OR_LOWER_RATE, Remedy(Action.USE_MORE_DATA))

    fewest_points: int = 30
    """Minimum number of points."""
    fell: float = 0.25
    """Minimum relative fall from the start."""
    share: float = 0.4
    """Minimum share of the run, up to its end, in which it did not change."""
    gain: float = 0.01
    """Relative fall from the first to the last third of that time below which it did not change."""
    known: float = 0.01
    """Maximum standard error of that fall."""
    long_share: float = 0.6
    """Share of the run from which on it is a warning."""
    long_steps: int = 10_000
    """Number of steps from which on it is a warning."""
    left: float = 0.4
    """Share of its start that is left where it is a warning."""
    decayed: float = 0.2
    """Share of the highest learning rate below which the schedule has ended the training."""

    def find(self, curves: RunCurves) -> list[Finding]:
        """The training losses of the whole model that stand, and the validation losses beside one that falls."""
        whole = [curve for curve in curves.losses if not curve.part]
        found = [finding for curve in whole if (finding := self._of(curve, curves)) is not None]
        if found or len(whole) != 1:
            return found
        validations = [curve for curve in curves.validations if not curve.part and curve.place == whole[0].place]
        return [finding for curve in validations if (finding := self._of(curve, curves, whole[0])) is not None]

    def _of(self, curve: Curve, curves: RunCurves, beside: Curve | None = None) -> Finding | None:
        levels = levels_of(curve) if curve.has_level else None
        if levels is None or not levels.logarithmic or len(levels.raw_x) < self.fewest_points:
            return None
        start, last = float(np.median(levels.raw_x[:3])), float(np.median(levels.x[-max(3, len(levels.x) // 10) :]))
        first = self._constant_from(levels)
        if first is None or -math.expm1(last - start) < self.fell or math.exp(last) <= curve.floor:
            return None
        steps = levels.raw_steps
        since, end = int(levels.steps[first]), int(steps[-1])
        share = (end - since) / max(1, end - int(steps[0]))
        if share < self.share or _decayed(curves.rates, (since + end) // 2, self.decayed):
            return None
        if beside is not None and not _fell_since(beside, since, 3 * self.gain):
            return None
        is_long = share >= self.long_share and end - since >= self.long_steps
        is_warning = beside is None and is_long and math.exp(last - start) >= self.left
        facts = StandstillFacts(
            curve.name,
            math.exp(last),
            math.exp(start),
            end - since,
            share,
            self.gain,
            "" if beside is None else beside.name,
        )
        return self.finding(curve, Severity.WARNING if is_warning else Severity.INFO, facts, since, end)

    def _constant_from(self, levels: Levels) -> int | None:
        """The block from which on nothing was gained up to the end."""
        x = levels.x
        for first in range(int(len(x) * (1 - self.share)) + 1):
            rest = x[first:]
            third = len(rest) // 3
            if third < 3 or 1.25 * levels.noise * math.sqrt(2 / third) > self.known:
                return None
            head, middle, tail = (float(np.median(part)) for part in np.array_split(rest, 3))
            if head - tail < self.gain and abs(middle - tail) < self.gain and tail - head < 2 * self.gain:
                return first + int(np.argmax(rest <= tail + max(self.gain, levels.noise)))
        return None


def _decayed(rates: tuple[Curve, ...], step: int, share: float) -> bool:
    """Whether the learning rates had decayed by a step to less than a share of their highest."""
    known = [rate for rate in rates if rate.finite.any() and rate.values[rate.finite].max() > 0]
    return bool(known) and all(
        float(np.interp(step, rate.steps[rate.finite], rate.values[rate.finite]))
        < share * float(rate.values[rate.finite].max())
        for rate in known
    )


def _fell_since(curve: Curve, step: int, share: float) -> bool:
    """Whether a loss has fallen by more than a share since a step."""
    values = curve.values[curve.finite & (curve.steps >= step)]
    if len(values) < 9 or values.min() <= 0:
        return False
    third = len(values) // 3
    return bool(np.median(values[-third:]) < (1 - share) * np.median(values[:third]))
