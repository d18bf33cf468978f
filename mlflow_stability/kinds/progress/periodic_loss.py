"""Say when a loss swings up and down with a period, as where the learning rate is too high."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.curves.curves import Curve, RunCurves
from mlflow_stability.detectors.finding_type import FindingType
from mlflow_stability.kinds.rule import Rule
from mlflow_stability.vocabulary.facts import Facts
from mlflow_stability.vocabulary.result import LOWER_RATE_2_TO_5, Action, Finding, Remedy, Severity

Numbers = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class PeriodicLossFacts(Facts):
    """A loss that swings up and down with a period."""

    kind: ClassVar[str] = "periodic_loss"
    metrics: ClassVar[Mapping[str, str]] = {"low": "low", "high": "high", "period": "period", "share": "share"}

    signal: str
    """The loss, by the name that the log gives it."""
    low: float
    """Its 10th percentile, in the unit of the loss."""
    high: float
    """Its 90th percentile, in the unit of the loss."""
    period: float
    """Number of steps from one maximum to the next."""
    share: float
    """Share of its variance that has this period."""
    threshold: float
    """From which share on it is periodic."""
    last_step: int
    """The last step of the swing."""

    def sentence(self, step: int, unit: str = "step", /) -> str:
        """``loss oscillates between 1.7 and 3.3 with a period of 40 steps from step 1000 to step 4999 (90% of …``"""
        period = f"{self.period:.0f}" if self.period >= 10 else f"{self.period:.1f}".removesuffix(".0")
        return (
            f"{self.signal} oscillates between {self.low:.4g} and {self.high:.4g} with a period of {period} {unit}s, "
            f"from {unit} {step} to {unit} {self.last_step} ({self.share:.0%} of its variance, threshold "
            f"{self.threshold:.0%})."
        )


@dataclass(frozen=True, slots=True)
class _Wave:
    """The wave in a part of a curve: its edges in logarithms, its period in points, and where the part ends."""

    low: float
    high: float
    period: float
    share: float
    last: int


@dataclass(frozen=True, slots=True)
class PeriodicLoss(FindingType):
    """The loss oscillates with a period.

    What it sees: a whole curve whose half, up to the end or in the middle, swings up and down regularly; the numbers
    are those of the rule.

    Why it matters: each step goes too far and the next ones come back, so that nothing is gained.

    What to try: lower the learning rate by a factor of 2 to 5; lower the momentum; use larger batches.

    When it is wrong: batches of two kinds that alternate; a learning rate that rises and falls on purpose, where it is
    not logged.

    Reference: Cohen et al., Gradient descent at the edge of stability (arXiv:2103.00065)
    """

    kind = "periodic_loss"
    noun = "a periodic loss"
    plural = "periodic losses"
    question = "Does the loss swing up and down with a period?"
    check_by_hand = "Plot the loss of a few hundred steps: regular waves point to a learning rate that is too high."
    order = 231
    severities = (Severity.INFO, Severity.WARNING)
    remedies = (LOWER_RATE_2_TO_5, Remedy(Action.USE_LARGER_BATCHES))


@dataclass(frozen=True, slots=True)
class PeriodicLossRule(Rule):
    """The loss swings up and down regularly over half of the run or more.

    What it sees: {fewest} points or more, up to the end or up to three quarters of the run, in which one period and its
    multiples have {share:percent} of the variance of the logarithm, beyond what noise has there; at least {periods}
    periods, which repeat without a trend: the line through them moves by less than the swing. Between the 10th and the
    90th percentile lies a factor of {mild} for INFO, and of {wide} for a warning, with a period of {short} points or
    more, or from the first {from_start:percent} of the run on. Not where the logged learning rate and the loss
    correlate at {with_rate} or more, nor where the loss is below {loss_fall.LEARNT:percent} of its start. Spikes and
    rises that stay within the swing belong to it.

    Why it matters: each step goes too far and the next ones come back, so that nothing is gained.

    What to try: lower the learning rate by a factor of 2 to 5; lower the momentum; use larger batches.

    When it is wrong: batches of two kinds that alternate; a learning rate that rises and falls on purpose, where it is
    not logged.

    Reference: Cohen et al., Gradient descent at the edge of stability (arXiv:2103.00065)
    """

    kind = "periodic_loss"
    order = 231
    remedies = PeriodicLoss.remedies

    fewest: int = 100
    """Minimum number of points of half of the run."""
    periods: int = 8
    """Minimum number of periods."""
    share: float = 0.6
    """Minimum share of the variance."""
    mild: float = 1.25
    """Minimum ratio of the highest to the lowest losses."""
    wide: float = 1.5
    """Minimum ratio for a warning."""
    short: float = 8.0
    """Period in points below which it is INFO: a few batches that come in turn look the same."""
    from_start: float = 0.2
    """Share of the run within which a loss with a shorter period must begin to swing to be a warning."""
    with_rate: float = 0.5
    """Correlation with the logarithm of the learning rate from which on the schedule explains it."""

    def find(self, curves: RunCurves) -> list[Finding]:
        """The training losses of the whole model that oscillate."""
        judged = [curve for curve in curves.losses if not curve.part and curve.has_level]
        return [finding for curve in judged if (finding := self._of(curve, curves.rates)) is not None]

    def _of(self, curve: Curve, rates: tuple[Curve, ...]) -> Finding | None:
        steps, values = curve.steps[curve.finite], curve.values[curve.finite]
        half = len(values) // 2
        if half < self.fewest or values.min() <= 0:
            return None
        waves = [
            self._wave(curve, steps, values, slice(last - half, last), rates)
            for last in (len(values), len(values) - half // 2)
        ]
        wave = max(filter(None, waves), key=lambda wave: wave.share, default=None)
        if wave is None:
            return None
        swing, at = wave.high - wave.low, wave.last - half
        first, end = _stretch(np.log(values), wave.last, wave.period, swing)
        is_lasting = wave.period >= self.short or first <= self.from_start * len(values)
        is_wide = swing >= math.log(self.wide) and is_lasting
        distance = float(steps[wave.last - 1] - steps[at]) / (half - 1)
        facts = PeriodicLossFacts(
            curve.name,
            math.exp(wave.low),
            math.exp(wave.high),
            wave.period * distance,
            wave.share,
            self.share,
            int(steps[end]),
        )
        severity = Severity.WARNING if is_wide else Severity.INFO
        over = end < len(values) - 1
        return self.finding(curve, severity, facts, steps[first], steps[end], recovered=over, of=PeriodicLoss)

    def _wave(
        self, curve: Curve, steps: NDArray[np.int64], values: Numbers, part: slice, rates: tuple[Curve, ...]
    ) -> _Wave | None:
        """The wave in a part of the curve; None where it does not swing, or goes somewhere."""
        x = np.log(values[part])
        low, high = (float(edge) for edge in np.percentile(x, [10, 90]))
        clipped = _clipped(x, low, high)
        trend = np.polyval(np.polyfit(np.arange(len(x)), clipped, 1), np.arange(len(x)))
        found = _period(clipped - trend, self.periods)
        if found is None or float(np.median(values[part])) <= curve.floor:
            return None
        period, share = found
        if share < self.share or high - low < math.log(self.mild) or abs(trend[-1] - trend[0]) > high - low:
            return None
        if any(_moves_with(rate, steps[part], clipped - trend, self.with_rate) for rate in rates):
            return None
        return _Wave(low, high, period, share, part.stop)


def _clipped(x: Numbers, low: float, high: float) -> Numbers:
    """The numbers, those far outside of the swing at its edge: a rise at the end is not part of the wave."""
    return np.clip(x, low - (high - low) / 2, high + (high - low) / 2)


def _period(wave: Numbers, periods: int) -> tuple[float, float] | None:
    """The period with most of the variance, in points, and its share, multiples included, beyond what noise has."""
    power = np.abs(np.fft.rfft(wave * np.hanning(len(wave)))) ** 2
    power[0] = 0.0
    total = float(power.sum())
    if total <= 0 or periods >= len(power):
        return None
    peak = periods + int(np.argmax(power[periods:]))
    mine = {line for multiple in range(1, 6) for line in range(multiple * peak - 2, multiple * peak + 3)}
    lines = [line for line in mine if line < len(power)]
    share, of_noise = float(power[lines].sum()) / total, len(lines) / len(power)
    return len(wave) / peak, (share - of_noise) / (1 - of_noise)


def _moves_with(rate: Curve, steps: NDArray[np.int64], wave: Numbers, least: float) -> bool:
    """Whether a learning rate that varies does so together with the loss, or against it."""
    known = rate.finite & (rate.values > 0)
    if known.sum() < 2:
        return False
    course = np.interp(steps, rate.steps[known], np.log(rate.values[known]))
    course -= np.polyval(np.polyfit(np.arange(len(course)), course, 1), np.arange(len(course)))
    if course.std() < 0.05 or wave.std() == 0:
        return False
    return bool(abs(np.corrcoef(course, wave)[0, 1]) >= least)


def _stretch(x: Numbers, within: int, period: float, swing: float) -> tuple[int, int]:
    """The first and the last point around one within which each two periods have at least half of the swing."""
    size = max(4, math.ceil(2 * period))
    before, behind = within // size, (len(x) - within) // size
    blocks = x[within - before * size : within + behind * size].reshape(-1, size)
    is_calm = np.ptp(np.percentile(blocks, [10, 90], axis=1), axis=0) < swing / 2
    calm_before, calm_behind = np.flatnonzero(is_calm[:before]), np.flatnonzero(is_calm[before:])
    first = within - (before - 1 - int(calm_before[-1])) * size if len(calm_before) else 0
    end = within + int(calm_behind[0]) * size if len(calm_behind) else len(x)
    return min(first, within - 1), end - 1
