"""Find divergences in whole curves: in the last points, in size, after a resume, of a return, and without a bound."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.curves.curves import Curve, RunCurves, after_last, continues, median_deviation, pieces_by_metric
from mlflow_stability.curves.levels import level_noise, to_judged_scale
from mlflow_stability.detectors.detector import Detector
from mlflow_stability.detectors.finding_type import Moves
from mlflow_stability.detectors.loss_fall import FIRST_VALUES
from mlflow_stability.detectors.loss_level import LEAST_SIZE, LOSS_RISE
from mlflow_stability.kinds.loss.divergence import Divergence
from mlflow_stability.kinds.rule import Rule, present
from mlflow_stability.vocabulary.facts import Facts, LossEndFacts
from mlflow_stability.vocabulary.result import LOWER_RATE_2_TO_5, Action, Finding, Remedy, Severity
from mlflow_stability.vocabulary.text.phrases import factor


@dataclass(frozen=True, slots=True)
class FinalRiseFacts(LossEndFacts):
    """A loss that jumped in its last points."""

    kind = "final_rise"
    metrics = ("before", "highest", "last")

    before: float  # Its level before, in the unit of the loss
    points: int  # Number of high points
    threshold: float  # From how many times its level before on a loss above zero is high

    def sentence(self, step: int, unit: str = "step", /) -> str:
        times = f"; level before {self.before:.4g}"
        if self.before > 0:
            times = (
                f", {factor(self.last / self.before)} times its level of {self.before:.4g} before (threshold "
                f"{self.threshold:.3g} times)"
            )
        return (
            f"{self.signal} jumped in the last {self.points} points, from {unit} {step} on: ended at "
            f"{self.last:.4g}{times}."
        )


@dataclass(frozen=True, slots=True)
class FinalRiseRule(Rule):
    """The last points of a loss, {fewest} or more, are all far above the points before them.

    What it sees: at least {fewest} points up to the last one. Each is above {smallest_rise:exp} times the level before
    them, above {deviations}σ of its noise, and above the highest of up to {before} points before, at least
    {fewest_before}. Rises longer than {most:percent} of the run are left to the other rules. A loss that reaches zero
    or below is judged by σ, and by {wandering} times its largest rise over as many points before: one that wanders does
    not diverge.

    When it is wrong: a spike that would have recovered had the log continued; the log cannot show that.
    """

    kind = "divergence"
    order = 40
    severities = (Severity.CRITICAL,)
    by_sensitivity: ClassVar[Mapping[str, Moves]] = {"deviations": "times", "smallest_rise": "times"}
    remedies = Divergence.remedies

    fewest_before: int = 32  # minimum number of points before the end
    before: int = 128  # maximum number of points before the end that are used
    fewest: int = 3  # minimum number of high points at the end
    smallest_rise: float = math.log(2)  # minimum rise of each of them above the level before, in nats
    deviations: float = 10.0  # minimum rise in σ of the noise of single points
    wandering: float = 1.5
    """Minimum rise of a loss that reaches zero or below, as a multiple of its largest rise over as many points before.
    CRITICAL without it: 10 of 30 random walks and 1 of 30 autoregressive losses (0.98); with it: 1 and 0."""
    most: float = 0.1  # maximum share of the run; longer rises are left to the divergence rule

    def like(self, detector: Detector) -> Rule:
        if not isinstance(detector, Divergence):
            return self
        times, smallest_rise = _factor_and_rise(detector, self.smallest_rise)
        return replace(self, deviations=self.deviations * times, smallest_rise=smallest_rise)

    def find(self, curves: RunCurves) -> list[Finding]:
        judged = [curve for curve in curves.losses or curves.validations if not curve.part and curve.has_level]
        return present(self._judge(curve.since_test.last_phase) for curve in judged)

    def _judge(self, curve: Curve) -> Finding | None:
        finite = curve.finite
        values, steps = curve.values[finite], curve.steps[finite]
        if len(values) < self.fewest_before + self.fewest or not finite[-1]:
            return None
        x, logarithmic = to_judged_scale(values)
        reach = max(self.fewest, int(self.most * len(x)))
        past = x[max(0, len(x) - reach - self.before) : max(self.fewest_before, len(x) - reach)]
        level, least = float(np.median(past)), self.deviations * level_noise(past)
        if logarithmic:
            least = max(least, self.smallest_rise)
        limit = max(level + least, float(past.max()))
        if not logarithmic:
            limit = max(limit, level + self.wandering * _largest_rise(x[: len(x) - reach], reach))
        first = after_last(x <= limit)  # with values of 1e308 the limit is NaN, and no value is low
        if not self.fewest <= len(x) - first <= reach or values[first:].min() < curve.floor:
            return None
        while first > 1 and x[first - 1] > level + least / 2:
            first -= 1
        peak = first + int(np.argmax(values[first:]))
        facts = FinalRiseFacts(
            curve.name,
            float(values[-1]),
            float(values[peak]),
            before=float(np.median(values[max(0, first - self.before) : first])),
            points=len(values) - first,
            threshold=math.exp(self.smallest_rise),
        )
        return self.finding(curve, Severity.CRITICAL, facts, steps[first], steps[-1], peak=steps[peak])


def _factor_and_rise(detector: Divergence, smallest_rise: float) -> tuple[float, float]:
    """Return the factor on σ of a user's detector, and the larger of a rise in nats and its smallest rise."""
    times = detector.threshold / Divergence().threshold
    return times, max(smallest_rise, math.log(max(1.0, detector.smallest_rise)))


def _largest_rise(x: NDArray[np.float64], within: int) -> float:
    """Return the largest rise of a curve within a number of points, by medians of five: one high point is no rise."""
    if len(x) < 10:
        return 0.0
    medians = np.median(np.lib.stride_tricks.sliding_window_view(x, 5), axis=1)
    return float((medians - _trailing_minimum(medians, min(within, len(medians)))).max())


def _trailing_minimum(x: NDArray[np.float64], count: int) -> NDArray[np.float64]:
    """Return for each point the minimum of the last `count` up to it, in linear time by minima within blocks."""
    padded = np.full(-(-(len(x) + count - 1) // count) * count, np.inf)
    padded[count - 1 : count - 1 + len(x)] = x
    blocks = padded.reshape(-1, count)
    forward = np.minimum.accumulate(blocks, axis=1).ravel()
    backward = np.minimum.accumulate(blocks[:, ::-1], axis=1)[:, ::-1].ravel()
    return np.asarray(np.minimum(backward[: len(x)], forward[count - 1 : count - 1 + len(x)]), np.float64)


@dataclass(frozen=True, slots=True)
class SizeRiseFacts(LossEndFacts):
    """A loss that ended many times as large as it began; `last` and `highest` are sizes, whatever its sign."""

    kind = "size_rise"
    metrics = ("early", "highest", "last")

    early: float  # Its size in the first points, in the unit of the loss
    threshold: float  # From which size on it is a finding, in the unit of the loss
    points: int = FIRST_VALUES  # Number of first points

    def sentence(self, step: int, unit: str = "step", /) -> str:
        times = ""
        if self.early > 0:
            ratio = factor(self.last / self.early)
            times = f", {ratio} times its size in the first {self.points} points, {self.early:.4g}"
        return (
            f"{self.signal} grew from {unit} {step} on: its size ended at {self.last:.4g}{times} (threshold "
            f"{self.threshold:.4g})."
        )


@dataclass(frozen=True, slots=True)
class LossSizeRule(Rule):
    """A loss without a level ended {smallest_rise} times as large as it began.

    What it sees: losses whose level does not measure progress: of adversarial training, of reinforcement learning, of
    self-distillation, or with a changing sign; with {fewest_points} points or more. The median size of the last {last}
    points, whatever their sign, is {smallest_rise} times that of the first {loss_fall.FIRST_VALUES}, and above
    {least_size}.

    When it is wrong: rewards that appear late and are very large.
    """

    kind = "divergence"
    order = 45
    severities = (Severity.CRITICAL,)
    remedies = Divergence.remedies

    smallest_rise: float = LOSS_RISE
    """Minimum ratio of the size at the end to that in the first {loss_fall.FIRST_VALUES} points."""
    least_size: float = LEAST_SIZE  # minimum size at the end
    last: int = 5  # number of last points whose median is the end
    fewest_points: int = 32  # minimum number of points

    def like(self, detector: Detector) -> Rule:
        if not isinstance(detector, Divergence):
            return self
        return replace(
            self, smallest_rise=detector.smallest_rise_without_level, least_size=detector.least_size_without_level
        )

    def find(self, curves: RunCurves) -> list[Finding]:
        return present(self._judge(curve) for curve in curves.losses or curves.validations if not curve.has_level)

    def _judge(self, curve: Curve) -> Finding | None:
        sizes, steps = np.abs(curve.values[curve.finite]), curve.steps[curve.finite]
        if len(sizes) < self.fewest_points:
            return None
        early, last = curve.early_size, float(np.median(sizes[-self.last :]))
        limit = max(self.least_size, self.smallest_rise * early)
        if last < limit:
            return None
        first = after_last(sizes[: -self.last] < limit)  # a single last value may be low again
        peak = first + int(np.argmax(sizes[first:]))
        facts = SizeRiseFacts(curve.name, last, float(sizes[peak]), early, limit)
        return self.finding(curve, Severity.CRITICAL, facts, steps[first], steps[-1], peak=steps[peak])


@dataclass(frozen=True, slots=True)
class ResumeFacts(LossEndFacts):
    """A loss that was higher after a resume than before it, and did not recover."""

    kind = "resume"
    metrics = ("before", "resumed", "highest", "last")

    before: float  # The loss before the resume, in its unit
    after: float  # The loss after the resume, in its unit
    resumed: int  # The first step after the resume
    threshold: float  # From how many times the loss before on it is a finding

    def sentence(self, _step: int, unit: str = "step", /) -> str:
        return (
            f"{self.signal} {self.after:.4g} after the resume at {unit} {self.resumed}, "
            f"{self.after / self.before:.3g} times the {self.before:.4g} before it (threshold {self.threshold:.3g} "
            f"times); ended at {self.last:.4g}."
        )


@dataclass(frozen=True, slots=True)
class ResumeRule(Rule):
    """After a resume the loss is higher than before it, and does not recover.

    What it sees: the first {fewest_points} to {most_points} values after the resume and the last ones of the run, both
    more than {smallest_rise:exp_rise} and {chance}σ above the values of the same steps before the resume, or the last
    ones before it. At the end {stayed:percent} of the rise must be left.

    When it is wrong: a resume that continues with another task or other data on purpose.
    """

    kind = "divergence"
    order = 50
    severities = (Severity.CRITICAL,)
    by_sensitivity: ClassVar[Mapping[str, Moves]] = {"chance": "times", "smallest_rise": "times"}
    remedies = (Remedy(Action.COMPARE_RESUMED_STATE), *Divergence.remedies)

    fewest_points: int = 8  # minimum number of values on each side
    most_points: int = 50  # maximum number of values that are compared
    smallest_rise: float = math.log(1.3)  # minimum rise in nats
    chance: float = 5.0  # minimum rise in σ of the difference of both medians
    stayed: float = 0.5  # minimum share of the rise that remains at the end

    def like(self, detector: Detector) -> Rule:
        if not isinstance(detector, Divergence):
            return self
        times, smallest_rise = _factor_and_rise(detector, self.smallest_rise)
        return replace(self, chance=self.chance * times, smallest_rise=smallest_rise)

    def find(self, curves: RunCurves) -> list[Finding]:
        judged = [curve for curve in curves.losses if not curve.part and curve.has_level]
        pairs = [pair for pieces in pieces_by_metric(judged) for pair in pairwise(pieces) if continues(*pair)]
        return present(self._judge(before, after) for before, after in pairs)

    def _judge(self, before: Curve, after: Curve) -> Finding | None:
        old, new = before.values[before.finite], after.values[after.finite]
        old_steps, steps = before.steps[before.finite], after.steps[after.finite]
        if min(len(old), len(new)) < self.fewest_points or min(old.min(), new.min()) <= 0:
            return None
        first_new = new[: self.most_points]
        repeated = old[old_steps >= steps[0]][: self.most_points]
        compared = repeated if len(repeated) >= self.fewest_points else old[-self.most_points :]
        level, start, last = (float(np.log(np.median(part))) for part in (compared, first_new, new[-5:]))
        noise = max(level_noise(np.log(compared)), level_noise(np.log(first_new)))
        error = 1.25 * noise * math.sqrt(1 / len(compared) + 1 / len(first_new))
        least = max(self.smallest_rise, self.chance * error)
        rise = start - level
        if math.exp(last) < before.floor or rise < least or last - level < max(least, self.stayed * rise):
            return None
        facts = ResumeFacts(
            after.name,
            math.exp(last),
            float(new.max()),
            before=math.exp(level),
            after=math.exp(start),
            resumed=int(steps[0]),
            threshold=math.exp(self.smallest_rise),
        )
        peak = steps[int(np.argmax(new))]
        return self.finding(after, Severity.CRITICAL, facts, steps[0], steps[-1], peak=peak)


@dataclass(frozen=True, slots=True)
class ReturnFallFacts(Facts):
    """A return that rose, fell back to where it began, and stayed there."""

    kind = "return_fall"

    signal: str  # The return, by the name that the log gives it
    start: float  # Its level at the start, in its unit
    best: float  # Its best level
    last: float  # Its level since it fell

    def sentence(self, step: int, unit: str = "step", /) -> str:
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

    When it is wrong: a harder environment from some step on, or an evaluation of another policy under the same name.
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

    fewest_points: int = 60  # minimum number of points
    fewest_last: int = 10  # minimum number of points at the end
    tails: tuple[float, float] = (0.1, 0.05)
    """Shares of the points that count as the end: of the first it is a warning, of the second information."""
    stretch: float = 0.1  # share of the points in the first and in the best stretch
    clear_gain: float = 1.5  # minimum gain from the first to the best stretch, in median deviations of each of them
    left: float = 0.1  # maximum share of the gain that is left
    back: float = 0.9  # share of the last points that must be back

    def find(self, curves: RunCurves) -> list[Finding]:
        return present(map(self._judge, curves.returns))[:1]  # several returns mostly mean the same

    def _judge(self, curve: Curve) -> Finding | None:
        values, steps = curve.values[curve.finite], curve.steps[curve.finite]
        count = len(values)
        if count < self.fewest_points:
            return None
        width = max(6, round(self.stretch * count))
        windows = np.lib.stride_tricks.sliding_window_view(values, width)
        top = int(np.argmax(np.median(windows, axis=1)))
        start, best = float(np.median(values[:width])), float(np.median(windows[top]))
        spread = max(median_deviation(values[:width]), median_deviation(windows[top]))
        gain = best - start
        if gain <= 0 or gain < self.clear_gain * spread:
            return None
        limit = start + self.left * gain
        for tail, severity in zip(self.tails, (Severity.WARNING, Severity.INFO), strict=True):
            last = values[-max(self.fewest_last, round(tail * count)) :]
            if len(last) <= count - top - width and float(np.quantile(last, self.back)) <= limit:
                first = min(top + width + after_last(values[top + width :] > limit), count - self.fewest_last)
                facts = ReturnFallFacts(curve.name, start, best, float(np.median(values[first:])))
                return self.finding(curve, severity, facts, steps[first], steps[-1])
        return None


PARTS = 8  # number of parts of a run whose medians are compared


@dataclass(frozen=True, slots=True)
class UnboundedFallFacts(Facts):
    """A loss that fell below zero without slowing down."""

    kind = "unbounded_fall"
    metrics = ("early", "last")

    signal: str  # The loss, by the name that the log gives it
    last: float  # Its median in the last eighth of the run, in its unit
    early: float  # Its median size in the first points, in the unit of the loss
    threshold: float  # From which size below zero on it is a finding, in the unit of the loss

    def sentence(self, _step: int, unit: str = "step", /) -> str:
        return (
            f"{self.signal} fell to {self.last:.4g} without slowing down; its size was {self.early:.4g} in the first "
            f"{unit}s (threshold {-self.threshold:.4g}). Such a loss has no lower bound."
        )


@dataclass(frozen=True, slots=True)
class UnboundedFallRule(Rule):
    """A loss falls below zero, and ever further.

    What it sees: a loss whose level measures progress, of {fewest_points} points or more, in {PARTS} equal parts. The
    medians of the second half are below zero, each lower than the one before, the last fall is at least {pace:percent}
    of the largest, and the last median is {times} times as far from zero as the first points, and as 1. From {far}
    times on, it is enough that the second half is below zero. Of {fewest_of_few} to {fewest_points} points, each is
    also lower than the one before, and the falls of the last third are {speed_up} times as large as those of the first.

    When it is wrong: a loss that is maximised on purpose, as to forget data.
    """

    kind = "divergence"
    order = 46
    severities = (Severity.CRITICAL,)
    remedies = (Remedy(Action.CHECK_SIGN_OF_LOSS),)

    times: float = 30.0
    """Minimum ratio of its size at the end to that in the first points. A log-likelihood of constant targets falls by a
    few units for each dimension."""
    pace: float = 0.5
    """Minimum ratio of the last fall from part to part to the largest one; a loss with a minimum slows down."""
    far: float = 1e4  # the same ratio of a loss that may also rise again: no likelihood falls as far
    fewest_points: int = 64  # minimum number of points
    fewest_of_few: int = 8  # minimum number of points of a loss that falls faster and faster
    speed_up: float = 3.0  # minimum ratio of its last falls to its first ones

    def find(self, curves: RunCurves) -> list[Finding]:
        return present(self._judge(curve) for curve in curves.losses if not curve.part and curve.has_level)

    def _judge(self, curve: Curve) -> Finding | None:
        values, steps = curve.values[curve.finite], curve.steps[curve.finite]
        few = len(values) < self.fewest_points
        if len(values) < self.fewest_of_few or values[-1] >= 0 or (few and not self._speeds_up(values)):
            return None
        early = float(np.median(np.abs(values[: len(values) // 3]))) if few else curve.early_size
        limit = self.times * max(1.0, early)
        medians = np.array([np.median(part) for part in np.array_split(values, PARTS)])
        falls = -np.diff(medians)
        second = PARTS // 2
        is_far = bool((medians[second:] < 0).all()) and medians[-1] <= -self.far * max(1.0, early)
        keeps_falling = medians[second] < 0 and bool((falls[second:] > 0).all())
        is_fast = keeps_falling and medians[-1] <= -limit and falls[-1] >= self.pace * falls.max()
        if not is_far and not is_fast:
            return None
        first = after_last(values >= 0)
        facts = UnboundedFallFacts(curve.name, float(medians[-1]), early, limit)
        return self.finding(curve, Severity.CRITICAL, facts, steps[first], steps[-1], peak=steps[-1])

    def _speeds_up(self, values: NDArray[np.float64]) -> bool:
        falls = -np.diff(values)
        third = len(falls) // 3
        return bool((falls > 0).all() and falls[-third:].mean() >= self.speed_up * falls[:third].mean())
