"""Find losses that ended far above their best level."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.curves.curves import NORMAL_MAD, Curve, RunCurves, median_deviation
from mlflow_stability.curves.levels import Levels, coarsen, level_noise, onset, read_levels
from mlflow_stability.detectors.detector import Detector
from mlflow_stability.detectors.finding_type import Moves
from mlflow_stability.detectors.growing_weight import HIGHEST_RISE, changed_between
from mlflow_stability.kinds.loss.divergence import Divergence
from mlflow_stability.kinds.rule import Rule
from mlflow_stability.vocabulary.facts import LossEndFacts
from mlflow_stability.vocabulary.result import Finding, Severity
from mlflow_stability.vocabulary.text.phrases import factor


@dataclass(frozen=True, slots=True)
class LastingRiseFacts(LossEndFacts):
    """A loss that ended above its best and did not come down again; `last` is its last finite value."""

    kind = "lasting_rise"
    metrics = ("best", "highest", "last")

    last_is_single: bool  # Whether that is the last value, and not a median of the last ones
    is_finite: bool  # Whether the loss is finite at its end; else `last` is its last finite value
    best: float  # The lowest level, in the unit of the loss
    best_step: int  # The step of that level
    threshold: float  # From how many times its best level on it is a rise
    weight_before: float | None = None  # The weight of a term of the loss at that step, where a schedule changed it
    weight_after: float | None = None  # The same at the end

    def sentence(self, step: int, unit: str = "step", /) -> str:
        ended = f"ended {'at' if self.last_is_single else 'near'} {self.last:.4g}"
        ended = ended if self.is_finite else f"last finite value {self.last:.4g}"
        times = "; best level"
        if self.best > 0:
            times = f", {factor(self.last / self.best)} times its best level of"
        # Judged by means of levels: the ratio of these two medians may be lower.
        clearly = self.best > 0 and self.last >= self.threshold * self.best
        limit = f" (threshold {self.threshold:.3g} times)" if clearly else ""
        return (
            f"{self.signal} rose from {unit} {step} on: {ended}{times} {self.best:.4g} at {unit} "
            f"{self.best_step}{limit}.{self._by_weight()}"
        )

    def _by_weight(self) -> str:
        """Return that a weight changed, after a space."""
        if self.weight_before is None or self.weight_after is None:
            return ""
        change = f"from {self.weight_before:.3g} to {self.weight_after:.3g}"
        return f" The weight of a term of the loss changed {change} meanwhile, which moves the loss by itself."


@dataclass(frozen=True, slots=True)
class DivergenceRule(Rule):
    """The loss ended well above its best value and did not recover.

    What it sees: the last {tails[1]:percent} or {tails[0]:percent} of the curve, at least two points, all above the
    best level by more than chance: {chance} standard deviations, and {luck} more because the best level is the luckiest
    of many. They are also {wandering} times as far above it as a random walk would be, or half of that where they lose
    half of a progress that no random walk explains, rise since the first tenth of the run, or are levels of fewer than
    {fewest_points_of_thirds} points; and at least {smallest_rise:exp_rise} on average, or {critical_rise:exp_rise} for
    the last two of {fewest_points_of_thirds} or more. A curve that was as high before, between two low levels, and lost
    {coming_back:percent} of that again, is not judged by this. This covers a lasting step up, a slow rise, and the last
    points of a sparse log. The rise must lose {lost_progress:percent} of the progress made, or, from
    {rise_to_long_ago:exp_rise} on, what {long_ago:percent} of the run had gained. A loss that reaches zero or below
    must lose {smallest_share_of_fall:percent} of its fall, if that was {clear_fall}σ of a level, or rise by
    {smallest_rise_in_spreads} standard deviations. A loss that ended below {loss_fall.LEARNT:percent} of its start is
    not judged. Chance is measured on the curve itself and grows with the time since the best value; of few levels it is
    higher by {unsure} divided by their number. It counts {confirmed:percent} where the validation loss ended above its
    best, too. {fewest_points} points are enough. Fewer, but three or more, have diverged where each of the last two is
    {explosion:exp} times the one before or more. A curve of {fewest_points_never_back} points or more whose whole
    second half is {above_start:exp_rise} above its start, or {above_first:exp_rise} above its first point, has diverged
    as well, unless the start is within {low_by_chance} standard deviations of its points. So has one of
    {fewest_points_of_thirds} points or more whose last third is {smallest_rise:exp_rise} and {errors_of_thirds}
    standard errors above its first. Of a loss that begins with {very_noisy} nats of noise, the mean of the last tenth
    must be above the lowest of a tenth as well. The reported step is the first one from which the curve stayed above
    its best level, or that of a jump, which has {sudden:percent} of the rise between two neighbouring stretches of
    {beside_a_jump} points. INFO where a curve of fewer than {fewest_points_of_thirds} points has lost
    {coming_back:percent} of its rise again and fell in each of its last {coming_back_points} points. From a rise of
    {critical_rise:exp_rise} on, or above the early curve, it is critical.

    When it is wrong: a curriculum, longer sequences, or a penalty that is switched on: the loss then means something
    else; INFO where the recording shows that a schedule changed the weight of a term. Losses whose level does not
    measure progress are judged by their size alone. A loss that was negative, and
    went back to within {near_zero:percent} of zero with at most {less_noise:percent} of its noise, is the objective of
    a policy that has become certain, and is not judged. Where another optimizer took over and its first loss is above
    those before, only the losses since are judged.
    """

    kind = "divergence"
    order = 30
    severities = (Severity.INFO, Severity.WARNING, Severity.CRITICAL)
    by_sensitivity: ClassVar[Mapping[str, Moves]] = {
        "chance": "times",
        "smallest_rise": "times",
        "smallest_rise_in_spreads": "times",
        "wandering": "times",
        "above_start": "times",
    }
    remedies = Divergence.remedies

    fewest_points: int = 7  # minimum number of points
    explosion: float = math.log(10)
    """Minimum rise of each of the last two of fewer points, in nats: {explosion:exp} times."""
    smallest_rise: float = math.log(Divergence().smallest_rise)
    """Minimum mean rise of the end above the best level, in nats: {smallest_rise:exp_rise}."""
    smallest_rise_in_spreads: float = 8.0
    """Minimum rise of a curve that reaches zero or below, in units of its own standard deviation."""
    lost_progress: float = 0.1  # minimum share of the progress that is lost at the end
    rise_to_long_ago: float = math.log(1.25)
    """Rise in nats that is enough where the loss is back at a value of `long_ago`: late progress is small, but is lost
    all the same."""
    long_ago: float = 0.25  # how long ago that is, as a share of the points
    smallest_share_of_fall: float = 0.5
    """For a curve that reaches zero or below and fell clearly: share of that fall which is enough as well."""
    clear_fall: float = 10.0
    """Number of standard deviations of a level, and more than a random walk, that make a clear fall."""
    near_zero: float = 0.25
    """For a curve that reaches zero or below: it went back to zero where it ends nearer to it than this share of its
    best level, ..."""
    less_noise: float = 0.5  # ... and its noise is at most this share of the noise until the best level
    chance: float = 4.0  # minimum mean rise in standard deviations of chance
    luck: float = 1.0  # standard deviations added to `chance`, because the best level is the luckiest of many
    unsure: float = 4.0  # increase of the noise of few levels: this number divided by their count
    confirmed: float = 0.5  # factor on chance where the validation loss ended above its best as well
    wandering: float = 2.0  # minimum rise as a multiple of the reach of a random walk with the curve's own steps
    fewest_points_never_back: int = 10  # minimum number of points of a curve whose whole second half is above its start
    above_start: float = math.log(1.15)  # minimum rise of that half above the start, in nats: {above_start:exp_rise}
    above_first: float = math.log(2)
    """Minimum rise above the very first point alone, where the curve left it at once: {above_first:exp_rise}."""
    low_by_chance: float = 2.5
    """Minimum distance of the first point to the median of that half, in standard deviations of its points; of the
    median of three points, 0.7 of it."""
    fewest_points_of_thirds: int = 40  # minimum number of points of a curve whose last third is compared with its first
    coming_back: float = 2 / 3
    """Minimum share of its rise, in nats, that a shorter curve must have lost again to be coming back, ..."""
    coming_back_points: int = 3  # ... in this number of last falls in a row at least
    errors_of_thirds: float = 4.0
    """Minimum rise from the median of the first third to that of the last, in standard errors."""
    tails: tuple[float, float] = (0.05, 0.02)  # shares of the curve that count as its end, at least two levels
    very_noisy: float = 0.1
    """Minimum noise of the first third, in nats, of a loss whose mean is compared as well: from its lowest tenth to the
    last one it must have risen by half of the smallest rise."""
    sudden: float = 0.5
    """Minimum share of the rise between the means of two neighbouring stretches for a jump: the reported step
    is then that of the jump, however low the loss happened to be shortly before."""
    beside_a_jump: int = 8
    """Number of points of each stretch; the rise is measured from eight times as many points before it."""
    critical_rise: float = 0.3  # rise in nats from which it is critical, as is an end above the early curve

    def like(self, detector: Detector) -> Rule:
        """Take the smallest rise from the detector, and scale σ as its own."""
        if not isinstance(detector, Divergence):
            return self
        usual, smallest = Divergence(), math.log(max(1.0, detector.smallest_rise))
        times = detector.threshold / usual.threshold
        below_zero = detector.threshold_of_differences / usual.threshold_of_differences
        return replace(
            self,
            smallest_rise=smallest,
            chance=self.chance * times,
            wandering=self.wandering * times,
            smallest_rise_in_spreads=self.smallest_rise_in_spreads * below_zero,
            above_start=max(self.above_start, smallest),
            above_first=max(self.above_first, smallest),
        )

    def find(self, curves: RunCurves) -> list[Finding]:
        judged = [curve for curve in curves.losses or curves.validations if not curve.part and curve.has_level]
        findings = []
        for curve in judged:
            finding = self._judge(_without_first_zeros(curve.since_test.last_phase), curves.validations)
            findings += [] if finding is None else [_beside_weights(finding, curve, curves.weights)]
        return findings

    def _is_coming_back(self, x: NDArray[np.float64], best: int) -> bool:
        """Whether a short curve has lost most of its rise again by its last points, each lower than the one before."""
        peak = best + int(np.argmax(x[best:]))
        if len(x) >= self.fewest_points_of_thirds or len(x) - peak <= self.coming_back_points:
            return False
        falls = bool((np.diff(x[peak:])[-self.coming_back_points :] < 0).all())
        return falls and x[peak] - x[-1] >= self.coming_back * (x[peak] - x[best])

    def _judge(self, curve: Curve, validations: tuple[Curve, ...]) -> Finding | None:
        levels = read_levels(curve)
        if levels is None:
            return None
        if len(levels.raw_x) < self.fewest_points:
            return self._exploded(curve, levels)
        tails = sorted({max(2, round(share * len(levels))) for share in self.tails}, reverse=True)
        for count in tails:
            finding = self._ended_above_best(curve, levels, count, validations)
            if finding is not None:
                return finding
        if not levels.logarithmic or not self._mean_rose(levels):
            return None
        best = int(np.argmin(levels.x[: max(1, len(levels) // 2)]))
        start = self._start_never_reached_again(curve, levels)
        if start is not None:
            level, left = start
            return self._finding(curve, levels, best, onset(levels, best, level), severity=Severity.CRITICAL, left=left)
        middle = self._middle_of_risen_thirds(curve, levels)
        return None if middle is None else self._finding(curve, levels, best, onset(levels, best, middle))

    def _exploded(self, curve: Curve, levels: Levels) -> Finding | None:
        """Judge a few points by their last two rises."""
        explodes = np.diff(levels.raw_x) >= self.explosion
        if not levels.logarithmic or len(explodes) < 2 or not explodes[-2:].all():
            return None
        before = len(explodes) - int(np.argmin(np.append(explodes[::-1], False)))
        return self._finding(curve, levels, int(np.argmin(levels.raw_x)), before + 1, severity=Severity.CRITICAL)

    def _middle_of_risen_thirds(self, curve: Curve, levels: Levels) -> float | None:
        """Return the level between the first and the last third of a noisy loss; None where that did not rise."""
        x, third = levels.raw_x, len(levels.raw_x) // 3
        if not curve.has_level or len(x) < self.fewest_points_of_thirds:
            return None
        first, last = x[:third], x[-third:]
        low, high = float(np.median(first)), float(np.median(last))
        error = math.hypot(_error_of_median(first), _error_of_median(last))
        risen = high - low >= max(self.smallest_rise, self.errors_of_thirds * error)
        return (low + high) / 2 if risen and _last_level(curve) >= curve.floor else None

    def _ended_above_best(
        self, curve: Curve, levels: Levels, count: int, validations: tuple[Curve, ...]
    ) -> Finding | None:
        """Judge the last `count` levels against the best level before."""
        x = levels.x
        best, floor = _best_held(x[:-count]) if len(x) > count else (0, float(x[0]))
        end = x[-count:]
        early = float(np.median(x[: min(3, best + 1)])) if best < len(x) // 20 else float(x[len(x) // 20])
        rise = float(end.mean()) - floor
        if rise < self._smallest(levels, early - floor) or _last_level(curve) < curve.floor:
            return None
        if count < 3 and len(levels) >= self.fewest_points_of_thirds and rise < self.critical_rise:
            return None  # of many levels the last two are often above the best one
        if not levels.logarithmic and self._died_away(levels, best, floor):
            return None
        noise = self._noise(levels, best)
        if self._is_confirmed(curve, int(levels.steps[best]), validations):
            noise *= self.confirmed
        lost = _lost_share(early, floor, floor + rise) if levels.logarithmic else 1.0
        if levels.logarithmic and not self._mean_rose(levels):
            return None
        wandering = self.wandering * _random_walk(levels, len(x) - count - best)
        is_progress = early - floor >= self.wandering * _random_walk(levels, best)
        if lost >= 0.5 and (is_progress or best < len(x) // 10 or len(x) < self.fewest_points_of_thirds):
            wandering /= 2
        by_chance = max((self.chance / math.sqrt(count) + self.luck) * noise, wandering)
        stayed = float(end.min()) - floor >= max(noise, rise / 4)
        long_ago = rise >= self.rise_to_long_ago and _undone_share(x, best, floor + rise) >= self.long_ago
        if not stayed or rise < by_chance or not (lost >= self.lost_progress or long_ago):
            return None
        if self._came_back_before(x[:-count], floor, rise, count):
            return None
        limit = floor + min(3 * noise, max(1.5 * noise, rise / 6))
        half = max(limit, floor + rise / 2)
        certain = onset(levels, best, half)
        jump = self._jump_near(levels, certain)
        start = _departure(levels, certain, best, limit, half) if jump is None else jump
        if levels.logarithmic and self._is_coming_back(levels.raw_x, best * levels.size):
            return self._finding(curve, levels, best, start, severity=Severity.INFO)
        severity = Severity.CRITICAL if rise >= self.critical_rise or lost >= 1 else Severity.WARNING
        return self._finding(curve, levels, best, start, severity=severity)

    def _came_back_before(self, x: NDArray[np.float64], floor: float, rise: float, count: int) -> bool:
        """Return whether the curve was as high for as long between two low levels: it lost `coming_back` of that."""
        low = np.flatnonzero(_held(x) <= floor + (1 - self.coming_back) * rise)
        between, width = x[low[0] : low[-1] + 1] if len(low) else x[:0], max(3, count)
        if len(between) < width:
            return False
        hills = np.median(np.lib.stride_tricks.sliding_window_view(between, width), axis=1)
        return bool(hills.max() >= floor + rise)

    def _mean_rose(self, levels: Levels) -> bool:
        """Return whether the mean of the last tenth is above the lowest before; True of a loss with less noise.

        The median of losses of single examples rises where a few hard ones become easier and the others harder.
        """
        x = levels.raw_x
        if len(x) < self.fewest_points_of_thirds or level_noise(x[: len(x) // 3]) < self.very_noisy:
            return True
        tenths = np.array_split(np.exp(x - x.max()), 10)
        highest = 2 * np.percentile(tenths[-1], 95)  # of single points, which may be outliers
        *before, last = (float(np.minimum(tenth, highest).mean()) for tenth in tenths)
        return last > min(before) * math.exp(self.smallest_rise / 2)

    def _jump_near(self, levels: Levels, index: int) -> int | None:
        """Return the point near this one at which most of the rise happened at once; None for a slower rise."""
        x, width = levels.raw_x, self.beside_a_jump
        first, last = max(width, index - 2 * width), min(len(x) - width, index + 2 * width)
        if first > last:
            return None
        usual, end = float(np.median(x[max(0, index - 8 * width) : index])), float(np.median(x[index:]))
        near = np.clip(x[first - width : last + width], None, 2 * end - usual)
        means = np.convolve(near, np.full(width, 1 / width), "valid")
        rises = means[width:] - means[:-width]
        return first + int(np.argmax(rises)) if rises.max() >= self.sudden * (end - usual) > 0 else None

    def _died_away(self, levels: Levels, best: int, floor: float) -> bool:
        """Return whether the loss and its noise went to zero, as in a policy that has become certain."""
        end, fall = levels.x[-10:], levels.x[: max(best + 1, 10)]  # fewer show no noise
        near_zero = abs(float(np.median(end))) <= self.near_zero * abs(floor)
        return near_zero and level_noise(end) <= self.less_noise * level_noise(fall)

    def _smallest(self, levels: Levels, fallen: float) -> float:
        if levels.logarithmic:
            return self.smallest_rise
        walked = 2 * self.wandering * _random_walk(levels, len(levels))
        if fallen < max(self.clear_fall * levels.noise, walked):
            return self.smallest_rise_in_spreads
        return min(self.smallest_rise_in_spreads, max(1.0, self.smallest_share_of_fall * fallen))

    def _noise(self, levels: Levels, best: int) -> float:
        """Return the larger noise of the whole curve and of the part since its best level, ten levels at least."""
        since = levels.x[min(best, max(0, len(levels) - 10)) :]
        noise = max(levels.noise, level_noise(since)) if len(since) >= 10 else levels.noise
        return noise * (1 + self.unsure / len(levels))

    def _is_confirmed(self, curve: Curve, best_step: int, validations: tuple[Curve, ...]) -> bool:
        """Return whether the last two validation losses after `best_step` are worse than the best one.

        Of many validations the best is the lowest that was held for some: a single one is lucky.
        """
        for other in validations:
            if other is curve or other.place != curve.place or other.attempt != curve.attempt:
                continue
            values, steps = other.values[other.finite], other.steps[other.finite]
            late = values[steps > best_step][-2:]
            if len(values) > len(late) == 2 and values.min() > 0:
                return bool(np.log(late.min()) - _best_held(np.log(values))[1] > self.smallest_rise)
        return False

    def _start_never_reached_again(self, curve: Curve, levels: Levels) -> tuple[float, float] | None:
        """Return the level at the start where the whole second half is above it, which noise cannot explain.

        As a logarithm, and in the unit of the loss.
        """
        x, values = levels.raw_x, curve.values[curve.finite]
        if len(x) < self.fewest_points_never_back:
            return None
        second = x[len(x) // 2 :]
        lowest = float(levels.x[len(levels.x) // 2 :].min())
        usual, spread = float(np.median(second)), self.low_by_chance * NORMAL_MAD * median_deviation(second)
        starts = [(float(np.median(x[:3])), float(np.median(values[:3])), self.above_start, spread / math.sqrt(2))]
        if values[0] > 0:  # some log a zero before they know a loss
            starts.append((float(x[0]), float(values[0]), self.above_first, spread))
        return next(
            (
                (start, value)
                for start, value, above, chance in starts
                if lowest > start + above and usual > start + chance
            ),
            None,
        )

    def _finding(
        self,
        curve: Curve,
        levels: Levels,
        best: int,
        start: int,
        *,
        severity: Severity = Severity.WARNING,
        left: float | None = None,
    ) -> Finding:
        """Return the finding; `left`: the loss at the start, where that is the level that it left."""
        finite = curve.values[curve.finite]
        broken = not np.isfinite(curve.values[-1])
        is_single = broken or severity is Severity.INFO or len(finite) < self.fewest_points
        last = float(finite[-1]) if is_single else _last_level(curve)
        peak = start + int(np.argmax(finite[start:]))
        # The median of its level: the lowest single point is luck, and reported elsewhere as the best.
        lowest = float(np.median(finite[best * levels.size : (best + 1) * levels.size]))
        if left is not None:
            lowest = left
        facts = LastingRiseFacts(
            curve.name,
            last,
            float(finite[peak]),
            last_is_single=f"{last:.4g}" == f"{finite[-1]:.4g}",
            is_finite=not broken,
            best=lowest,
            best_step=int(levels.steps[best] if left is None else levels.raw_steps[0]),
            threshold=math.exp(self.smallest_rise),
        )
        steps = levels.raw_steps
        return self.finding(curve, severity, facts, steps[start], curve.steps[-1], peak=steps[peak])


def _beside_weights(finding: Finding, loss: Curve, weights: Sequence[Curve]) -> Finding:
    """Return the finding as information where a schedule raised the weight of a term of the loss by as much."""
    facts = finding.facts_as(LastingRiseFacts)
    weight = next((curve for curve in weights if curve.attempt == finding.attempt), None)
    if facts is None or weight is None or not facts.is_finite or facts.last >= HIGHEST_RISE * loss.early_size:
        return finding
    changes = list(zip(weight.steps.tolist(), weight.values.tolist(), strict=True))
    change = changed_between(changes, facts.best_step, finding.end)
    if change is None or (facts.best > 0 and facts.last * abs(change[0]) > facts.best * abs(change[1])):
        return finding
    facts = replace(facts, weight_before=change[0], weight_after=change[1])
    return replace(finding, severity=Severity.INFO, facts=facts)


def _error_of_median(x: NDArray[np.float64]) -> float:
    """Return the standard error of a median, by the spread of the points or of the medians of five parts."""
    parts = np.array([float(np.median(part)) for part in np.array_split(x, 5)])
    single = NORMAL_MAD * median_deviation(x) * 1.25 / math.sqrt(len(x))
    return max(single, float(parts.std(ddof=1)) / math.sqrt(len(parts)))


def _without_first_zeros(curve: Curve) -> Curve:
    # Some trainings log a zero before they know a loss.
    nonzero = np.flatnonzero(curve.values != 0)
    first = int(nonzero[0]) if len(nonzero) else 0
    return replace(curve, steps=curve.steps[first:], values=curve.values[first:]) if first else curve


def _last_level(curve: Curve) -> float:
    # The median of five points: a single one may be low by chance.
    return float(np.median(curve.values[curve.finite][-5:]))


def _random_walk(levels: Levels, since: int) -> float:
    """Return how far a random walk with the curve's own steps would be by now.

    Coarsening the curve evens out noise that differs from point to point.
    """
    coarse, size = coarsen(levels, 25)
    return level_noise(coarse) * math.sqrt(max(1.0, since / size))


def _lost_share(early: float, floor: float, end: float) -> float:
    """Return the share of the progress that is lost: a ripple near zero loses little."""
    gained, lost = (math.expm1(min(level - floor, 700.0)) for level in (early, end))
    return lost / gained if gained > 0 else 1.0


def _undone_share(x: NDArray[np.float64], best: int, end: float) -> float:
    """Return how long before its best the curve was last as high as at its end, as a share of its points."""
    high = np.flatnonzero(x[:best] >= end)
    return (best - int(high[-1] if len(high) else 0)) / len(x)


def _best_held(x: NDArray[np.float64]) -> tuple[int, float]:
    """Return the best level that the curve held, for up to five levels, and its index."""
    held = _held(x)
    best, width = int(np.argmin(held)), 1 + len(x) - len(held)
    return best + int(np.argmin(x[best : best + width])), float(held[best])


def _held(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the median of each level and up to four that follow."""
    width = 5 if len(x) >= 40 else 3 if len(x) >= 18 else 1
    return np.asarray(np.median(np.lib.stride_tricks.sliding_window_view(x, width), axis=1), np.float64)


def _departure(levels: Levels, certain: int, best: int, limit: float, half: float) -> int:
    """Return the point at which the curve left its level: going back from a certain one, the last at or below `limit`.

    In a curve of many points, medians of neighbours count, so that one lucky point is no return.
    """
    width = max(1, min(levels.size, 5) | 1) if levels.size > 1 else 1 if len(levels) < 30 else 3
    first = best * levels.size
    x = levels.raw_x[first : certain + 1]
    if len(x) <= width:
        return certain
    medians = np.median(np.lib.stride_tricks.sliding_window_view(x, width), axis=1)
    low = np.flatnonzero(medians <= limit)
    if not len(low):
        return certain
    last_low = first + int(low[-1])
    start = last_low + (width + 1) // 2
    while start < min(certain, last_low + width) and levels.raw_x[start] < half:
        start += 1  # a median rises up to half of its width before the step
    start = min(start, certain)
    before, rising = levels.raw_x[first:start], levels.raw_x[start:certain]
    stayed = len(before) > len(rising) > 0 and rising.max() <= before.max()
    return certain if stayed else start
