"""Detect losses that oscillate, from step to step or with a period."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median_high
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.curves.curves import Curve, RunCurves
from mlflow_stability.detectors.detector import Detector, Point
from mlflow_stability.detectors.finding_type import FindingType, Instability
from mlflow_stability.kinds.rule import Rule, present
from mlflow_stability.vocabulary.facts import Facts
from mlflow_stability.vocabulary.result import LOWER_RATE_2_TO_5, Action, Finding, Remedy, Severity

Numbers = NDArray[np.float64]


@dataclass(slots=True)
class OscillationState:
    recent: deque[float] = field(default_factory=deque)
    since: int = 0  # number of losses since the last judgement
    reported: bool = False


@dataclass(frozen=True, slots=True)
class OscillationFacts(Facts):
    """A loss that swings to and fro from step to step."""

    kind: ClassVar[str] = "oscillation"
    metrics = ("swing", "level", "turning_points", "correlation")

    swing: float  # Median change from step to step, in the unit of the loss
    level: float  # Median size of the loss, in its unit
    turning_points: float  # Share of the losses that are local maxima or minima
    correlation: float  # Correlation of one change with the next
    threshold: float  # Minimum swing, as a share of the loss
    values: int  # Number of losses that were judged

    def sentence(self, step: int, unit: str = "step", /) -> str:
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

    window: int = 256  # number of losses that are judged together
    every: int = 32  # number of new losses between two judgements
    extremes: float = 0.3  # minimum share of local maxima and minima
    swing: float = 0.05  # minimum median change from step to step, as a share of the loss
    correlation: float = -0.7  # maximum correlation of one change with the next

    kind = "oscillation"
    instability = Instability.HARMFUL
    noun = "oscillation"
    order = 230
    quantities = ("loss",)
    severities = (Severity.INFO,)
    experimental = True
    remedies = (LOWER_RATE_2_TO_5, Remedy(Action.USE_LARGER_BATCHES))

    def begin(self) -> OscillationState:
        return OscillationState(deque(maxlen=self.window))

    def step(self, state: OscillationState, point: Point) -> tuple[OscillationState, Finding | None]:
        if not point.finite or not point.has_level:
            return state, None
        state.recent.append(point.value)
        state.since += 1
        if state.since < self.every or len(state.recent) < self.window:
            return state, None
        state.since = 0
        facts = self._oscillation(list(state.recent))
        was_reported, state.reported = state.reported, facts is not None
        if facts is None or was_reported:
            return state, None
        return state, self.finding(point, Severity.INFO, facts)

    def _oscillation(self, losses: list[float]) -> OscillationFacts | None:
        level = median_high(map(abs, losses))
        changes = [after - before for before, after in pairwise(losses)]
        swing = median_high(map(abs, changes))
        if not swing > self.swing * level or not math.isfinite(swing):
            return None
        turns = sum(before * after < 0 for before, after in pairwise(changes)) / len(losses)
        correlation = _correlation(changes, swing)
        if turns < self.extremes or correlation > self.correlation:
            return None
        return OscillationFacts(swing, level, turns, correlation, self.swing, self.window)


def _correlation(changes: list[float], swing: float) -> float:
    """Return the correlation of each change with the next; an outlier counts as four usual changes at most."""
    limit = 4 * swing
    capped = [min(max(change / limit, -1.0), 1.0) for change in changes] if limit > 0 else changes
    squares = math.fsum(change * change for change in capped)
    return math.fsum(a * b for a, b in pairwise(capped)) / squares if squares > 0 else 0.0


@dataclass(frozen=True, slots=True)
class PeriodicLossFacts(Facts):
    """A loss that swings up and down with a period."""

    kind: ClassVar[str] = "periodic_loss"
    metrics: ClassVar[Mapping[str, str]] = {"low": "low", "high": "high", "period": "period", "share": "share"}

    signal: str  # The loss, by the name that the log gives it
    low: float  # Its 10th percentile, in the unit of the loss
    high: float  # Its 90th percentile, in the unit of the loss
    period: float  # Number of steps from one maximum to the next
    share: float  # Share of its variance that has this period
    threshold: float  # Minimum of that share
    last_step: int  # The last step of the swing

    def sentence(self, step: int, unit: str = "step", /) -> str:
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
    more, or from the first {from_start:percent} of the run on where its mean has not fallen by {progress:percent}. Not
    where the logged learning rate and the loss correlate at {with_rate} or more, nor where the loss is below
    {loss_fall.LEARNT:percent} of its start. Spikes and rises that stay within the swing belong to it.

    When it is wrong: batches of two kinds that alternate; a learning rate that rises and falls on purpose, where it is
    not logged.
    """

    kind = "periodic_loss"
    order = 231
    remedies = PeriodicLoss.remedies

    fewest: int = 100  # minimum number of points of half of the run
    periods: int = 8  # minimum number of periods
    share: float = 0.6  # minimum share of the variance
    mild: float = 1.25  # minimum ratio of the highest to the lowest losses
    wide: float = 1.5  # minimum ratio for a warning
    short: float = 8.0  # period in points below which it is INFO: a few batches that come in turn look the same
    from_start: float = 0.2
    """Share of the run within which a loss with a shorter period must begin to swing to be a warning."""
    progress: float = 0.5
    """Minimum fall of the mean of such a loss that makes it INFO: batches in the same order swing, too."""
    with_rate: float = 0.5  # minimum correlation with the logarithm of the learning rate where the schedule explains it

    def find(self, curves: RunCurves) -> list[Finding]:
        return present(self._judge(loss, curves.rates) for loss in curves.losses if not loss.part and loss.has_level)

    def _judge(self, curve: Curve, rates: tuple[Curve, ...]) -> Finding | None:
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
        is_early = first <= self.from_start * len(values) and not self._progressed(values, part=slice(at, wave.last))
        is_lasting = wave.period >= self.short or is_early
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
        recovered = end < len(values) - 1
        return self.finding(curve, severity, facts, steps[first], steps[end], recovered=recovered, of=PeriodicLoss)

    def _progressed(self, values: Numbers, part: slice) -> bool:
        """Return whether the mean of the loss is far below that of its first periods."""
        begun = values[: 2 * math.ceil(self.short)]
        return float(values[part].mean()) <= (1 - self.progress) * float(begun.mean())

    def _wave(
        self, curve: Curve, steps: NDArray[np.int64], values: Numbers, part: slice, rates: tuple[Curve, ...]
    ) -> _Wave | None:
        """Return the wave in a part of the curve; None where it does not swing, or has a trend."""
        x = np.log(values[part])
        low, high = (float(edge) for edge in np.percentile(x, [10, 90]))
        # A rise at the end is no part of the wave.
        clipped = np.clip(x, low - (high - low) / 2, high + (high - low) / 2)
        trend = _line_through(clipped)
        period_and_share = _period(clipped - trend, self.periods)
        if period_and_share is None or float(np.median(values[part])) <= curve.floor:
            return None
        period, share = period_and_share
        if share < self.share or high - low < math.log(self.mild) or abs(trend[-1] - trend[0]) > high - low:
            return None
        if any(_moves_with(rate, steps[part], clipped - trend, self.with_rate) for rate in rates):
            return None
        return _Wave(low, high, period, share, part.stop)


def _line_through(x: Numbers) -> Numbers:
    at = np.arange(len(x))
    return np.asarray(np.polyval(np.polyfit(at, x, 1), at), np.float64)


def _period(wave: Numbers, periods: int) -> tuple[float, float] | None:
    """Return the strongest period, in points, and its share of the variance with its harmonics, without noise's."""
    power = np.abs(np.fft.rfft(wave * np.hanning(len(wave)))) ** 2
    power[0] = 0.0
    total = float(power.sum())
    if total <= 0 or periods >= len(power):
        return None
    peak = periods + int(np.argmax(power[periods:]))
    near_harmonics = {line for multiple in range(1, 6) for line in range(multiple * peak - 2, multiple * peak + 3)}
    lines = [line for line in near_harmonics if line < len(power)]
    share, of_noise = float(power[lines].sum()) / total, len(lines) / len(power)
    return len(wave) / peak, (share - of_noise) / (1 - of_noise)


def _moves_with(rate: Curve, steps: NDArray[np.int64], wave: Numbers, min_correlation: float) -> bool:
    """Whether a learning rate that varies does so together with the loss, or against it."""
    usable = rate.finite & (rate.values > 0)
    if usable.sum() < 2:
        return False
    course = np.interp(steps, rate.steps[usable], np.log(rate.values[usable]))
    course -= _line_through(course)
    if course.std() < 0.05 or wave.std() == 0:
        return False
    return bool(abs(np.corrcoef(course, wave)[0, 1]) >= min_correlation)


def _stretch(x: Numbers, within: int, period: float, swing: float) -> tuple[int, int]:
    """Return the first and last point around `within` between which any two periods have half of the swing."""
    size = max(4, math.ceil(2 * period))
    before, behind = within // size, (len(x) - within) // size
    blocks = x[within - before * size : within + behind * size].reshape(-1, size)
    is_calm = np.ptp(np.percentile(blocks, [10, 90], axis=1), axis=0) < swing / 2
    calm_before, calm_behind = np.flatnonzero(is_calm[:before]), np.flatnonzero(is_calm[before:])
    first = within - (before - 1 - int(calm_before[-1])) * size if len(calm_before) else 0
    end = within + int(calm_behind[0]) * size if len(calm_behind) else len(x)
    return min(first, within - 1), end - 1
