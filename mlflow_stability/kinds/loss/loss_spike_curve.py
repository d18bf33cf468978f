"""Says when a loss stood far above both what came before and what came after, in one point or for a while."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.curves.bumps import bumps_of
from mlflow_stability.curves.curves import Curve, RunCurves
from mlflow_stability.curves.levels import scaled
from mlflow_stability.curves.log_resolution import is_rounding
from mlflow_stability.curves.prominence import Jumps, jumps_of, noise_of_points, tail_limit
from mlflow_stability.detectors.detector import Detector
from mlflow_stability.detectors.finding_type import Moves
from mlflow_stability.kinds.loss.loss_spike import LossSpike
from mlflow_stability.kinds.rule import Rule
from mlflow_stability.vocabulary.facts import Facts
from mlflow_stability.vocabulary.result import Finding, Severity
from mlflow_stability.vocabulary.text.phrases import sigmas

_STEP_BY_STEP = LossSpike()
"""The detector: where a threshold means the same for a whole curve, it is the same number."""


@dataclass(frozen=True, slots=True)
class CurveSpikeFacts(Facts):
    """A loss that was far above both what came before and what came after."""

    kind: ClassVar[str] = "curve_spike"
    metrics: ClassVar[Mapping[str, str]] = {"peak": "value", "before": "baseline", "z": "sigmas"}

    signal: str
    """The loss, by the name that the log gives it."""
    value: float
    """The highest loss, in its unit."""
    baseline: float
    """The loss around it, in its unit."""
    sigmas: float
    """How far the highest loss is above its neighbours, in σ of the noise of single points."""
    threshold: float
    """From how many σ on a single point is a spike."""
    points: int
    """Number of high points."""
    peak_step: int | None
    """The step of the highest loss; None where it is the first."""
    recovered: bool
    """Whether it was over by the end of the log."""

    def sentence(self, step: int, unit: str = "step", /) -> str:
        """``loss jumped to 7.47 at step 400 from about 0.552 (18.8σ, threshold 8σ) and recovered.``"""
        top = step if self.peak_step is None else self.peak_step
        above = f" ({sigmas(self.sigmas)}, threshold {self.threshold:.3g}σ)" if self.sigmas >= self.threshold else ""
        said = f"{self.signal} jumped to {self.value:.4g} at {unit} {top} from about {self.baseline:.4g}{above}"
        if self.points > 1:
            begun = "" if self.peak_step is None else f" at {unit} {step}"
            said = f"{self.signal} rose from about {self.baseline:.4g}{begun} to {self.value:.4g} at {unit} {top}"
        if not self.recovered:
            return f"{said}; the log ends there."
        return f"{said} and recovered after {self.points} points." if self.points > 1 else f"{said} and recovered."


@dataclass(frozen=True, slots=True)
class SpikeRule(Rule):
    """The loss rose far above the points around it and recovered.

    What it sees: in curves of {fewest_points} to {most_points} points, one point above the medians of its neighbours,
    up to {reach} on each side. It is further above them than the curve's own noise reaches once in twenty runs of this
    length (times {share_of_tail}, in long curves times {further_of_many}), and by {smallest_jump[0]:exp_rise} (from
    {lengths[1]} points on: by {smallest_jump[1]:exp_rise} and {deviations[1]}σ), and {deviations_there}σ of the noise
    of the {there} points on each side. Or several points, up to a fifth of the curve, whose median is
    {smallest_rise_of_several:exp_rise} and {deviations_of_several}σ above the medians of as many points before and
    after; these may jump and decay, or build up over epochs. A loss that reaches zero or below is judged by
    {deviations_below_zero}σ, by {smallest_rise_in_spreads} of its own standard deviations and
    {smallest_share_of_fall:percent} of its fall. The spike must undo more progress than it lasts. Training and
    validation losses are judged separately, as are means over epochs. Jumps shared by training and validation loss
    count from {agreeing[0]}σ on; jumps shared with the gradient norm from {agreeing_with_gradient[0]}σ and
    {agreeing_share_of_tail:percent} of the loss's own noise. Losses below {loss_fall.LEARNT:percent} of the start never
    count, nor does one point below {loss_fall.NOISY_RISE:percent} once a very noisy loss is below
    {loss_fall.NOISY_BELOW:percent}. The reported step is the first one above a quarter of the height. A log that ends
    in a single high point has a spike there, in several a divergence. A spike to {huge} times the level before is
    critical. A single point that recovered is INFO. It is a warning where {fewest_after} points or more after it keep
    {kept_rise:percent} of its rise, where it is one of {returns} spikes within {returns_within} points, or where it
    undid {lost_progress[0]:percent} of all progress made until then. From {lengths[1]} points on, it must be at
    {times_beyond_noise} times its threshold in σ and undo {lost_progress[1]:percent} of the progress, in nats, or all
    of it where the loss has not yet fallen by a factor of {learnt:exp}.

    Why it matters: a spike is a bad batch or a step that was too large; the next one may not recover.

    What to try: inspect the batch; clip gradients at 1.0; lower the learning rate by a factor of 2 to 5.

    When it is wrong: validations of few examples. A training that starts with a high learning rate overshoots: a spike
    that ends within the first {start_up:percent} of the steps is INFO only.

    Reference: Chowdhery et al. 2022, PaLM, section 5.1; Pickands 1975 (tails over a threshold);
    `python -m tests.benchmarks rule_recall` (how often which size is found).
    """

    kind = "loss_spike"
    order = 20
    only_without_detectors = True
    of_validations = True
    severities = (Severity.INFO, Severity.WARNING, Severity.CRITICAL)
    by_sensitivity: ClassVar[Mapping[str, Moves]] = {
        "deviations": "times",
        "smallest_jump": "times",
        "agreeing": "times",
        "agreeing_with_gradient": "times",
        "share_of_tail": "times",
        "deviations_of_several": "times",
        "smallest_rise_of_several": "times",
        "deviations_below_zero": "times",
        "smallest_rise_in_spreads": "times",
    }
    remedies = LossSpike.remedies

    fewest_points: int = 6
    """Minimum number of points."""
    most_points: int = 100_000
    """Maximum number of points; longer curves are left to the detector."""
    lengths: tuple[int, int] = (16, 256)
    """Numbers of points of a short and of a long curve: thresholds with two values move from the one to the other."""
    further_of_many: float = 1.3
    """Factor on the tail for long curves, which the detector judges as well."""
    share_of_tail: float = _STEP_BY_STEP.share_of_tail
    """Factor on the tail of the curve's own noise; 0 turns this off."""
    deviations: tuple[float, float] = (5.0, _STEP_BY_STEP.threshold)
    """Thresholds in σ for short and for long curves."""
    smallest_jump: tuple[float, float] = (math.log(1.3), math.log(1.15))
    """Minimum rises in nats for the same two lengths."""
    deviations_of_several: float = 7.0
    """Threshold in σ for several points, in the noise of such stretches: rule_recall.py finds no more healthy runs
    flagged than with single points alone."""
    smallest_rise_of_several: float = math.log(1.3)
    """Minimum rise of several points, in nats: healthy validations vary by 10 to 20 %."""
    deviations_below_zero: float = _STEP_BY_STEP.threshold_of_differences
    """Threshold in σ for a loss that reaches zero or below."""
    smallest_rise_in_spreads: float = 1.0
    """Minimum rise of such a loss in units of the curve's own standard deviation."""
    smallest_share_of_fall: float = 0.1
    """Minimum rise of such a loss as a share of its fall to its lowest."""
    there: int = 24
    """Number of points on each side that show the local noise."""
    deviations_there: float = 4.0
    """Minimum rise in σ of the local noise."""
    agreeing: tuple[float, float] = (2.0, math.log(2))
    """σ and rise in nats that are enough where training and validation loss jump in the same step: then the model
    jumped, not one batch."""
    agreeing_with_gradient: tuple[float, float] = (3.5, math.log(1.2))
    """The same where the gradient norm jumps with the loss."""
    agreeing_share_of_tail: float = 0.75
    """Factor on the tail then: where few examples decide, one moves both."""
    reach: int = 8
    """Maximum number of neighbours on each side; of short curves an eighth of the points."""
    start_up: float = 0.05
    """A spike within this share of the run that recovered is a start-up transient, and INFO only."""
    huge: float = _STEP_BY_STEP.critical_rise
    """Ratio to the level before from which a spike is critical."""
    lost_progress: tuple[float, float] = (0.1, 0.25)
    """Rise of a single point that recovered, as a share of the progress until then, from which it is a warning: for
    short curves, each of whose points may stand for many steps, and for long ones, in nats."""
    times_beyond_noise: float = 1.25
    """Minimum multiple of its threshold in σ for that, in longer curves; also where nothing had been learnt."""
    learnt: float = math.log(2)
    """Minimum progress in nats for that, in longer curves; below it the rise must undo all of the progress."""
    kept_rise: float = 0.25
    """Share of the rise that the points after a spike keep where it made the loss worse."""
    fewest_after: int = 3
    """Minimum number of points after it that show this."""
    returns: int = _STEP_BY_STEP.returns
    """Number of spikes within `returns_within` points from which on each is a warning."""
    returns_within: int = _STEP_BY_STEP.returns_within
    """The points in which they are counted."""
    threshold_alone: bool = False
    """Whether every spike is a warning, as for a threshold of your own."""

    def like(self, detector: Detector) -> Rule:
        """σ, ratios and counts are those of the detector.

        `threshold_alone` finds all that is so many σ above its level, whatever its size and however heavy the tail.
        """
        if not isinstance(detector, LossSpike):
            return self
        if not detector.threshold_alone:
            return self._like(detector)
        asked = detector.threshold
        return replace(
            self,
            deviations=(asked, asked),
            deviations_of_several=asked,
            deviations_below_zero=asked,
            agreeing=(asked, 0.0),
            agreeing_with_gradient=(asked, 0.0),
            agreeing_share_of_tail=0.0,
            smallest_jump=(0.0, 0.0),
            smallest_rise_in_spreads=0.0,
            smallest_share_of_fall=0.0,
            share_of_tail=0.0,
            deviations_there=0.0,
            threshold_alone=True,
        )

    def _like(self, detector: LossSpike) -> Rule:
        usual = _STEP_BY_STEP
        times = detector.threshold / usual.threshold
        together = detector.threshold_with_gradient / usual.threshold_with_gradient
        below_zero = detector.threshold_of_differences / usual.threshold_of_differences
        few, many = self.deviations
        shared, rise_shared = self.agreeing
        with_gradient, rise_with_gradient = self.agreeing_with_gradient
        rule = replace(
            self,
            deviations=(few * times, many * times),
            deviations_of_several=self.deviations_of_several * times,
            deviations_below_zero=self.deviations_below_zero * below_zero,
            agreeing=(shared * times, rise_shared),
            agreeing_with_gradient=(with_gradient * together, rise_with_gradient),
            share_of_tail=self.share_of_tail * (detector.share_of_tail / usual.share_of_tail),
            huge=detector.critical_rise,
            returns=detector.returns,
            returns_within=detector.returns_within,
        )
        if detector.smallest_rise == usual.smallest_rise:
            return rule
        asked = math.log(max(1.0, detector.smallest_rise))
        return replace(
            rule,
            smallest_jump=(asked, asked),
            smallest_rise_of_several=asked,
            agreeing=(rule.agreeing[0], max(asked, rise_shared)),
            agreeing_with_gradient=(rule.agreeing_with_gradient[0], max(asked, rise_with_gradient)),
        )

    def find(self, curves: RunCurves) -> list[Finding]:
        """The spikes of the losses of the whole model, those of training first."""
        every = (*curves.losses, *curves.validations, *curves.averages)
        judged = [curve for curve in every if not curve.part and curve.has_level]
        jumps = {id(curve): self._jumps(curve) for curve in (*judged, *curves.norms)}
        found: list[Finding] = []
        for curve in judged:
            mine = jumps[id(curve)]
            if mine is None:
                continue
            high = mine.far(self._limit(mine), self._jump(mine))
            tail = self.agreeing_share_of_tail * tail_limit(mine.z, len(mine.z))
            for other in (*judged, *curves.norms) if mine.logarithmic else ():
                theirs = jumps[id(other)]
                if theirs is None or other.attempt != curve.attempt or other.quantity == curve.quantity:
                    continue
                needed = self.agreeing_with_gradient if other.quantity == "grad_norm" else self.agreeing
                least = max(needed[0], tail) if other.quantity == "grad_norm" else needed[0]
                high |= mine.far(least, needed[1]) & np.isin(mine.steps, theirs.steps[theirs.far(*needed)])
            spikes = [each for each in self._stretches(mine, high) if self._stands_out(curve, mine, *each)]
            found += [self._episode(curve, mine, *each, often=self._comes_back(each[0], spikes)) for each in spikes]
        return found

    def judges(self, curve: Curve) -> bool:
        """Whether the curve is one that this rule can judge: neither too short nor too long, nor mostly zero."""
        values = curve.values[curve.finite]
        fits = self.fewest_points <= len(values) <= self.most_points
        return fits and (bool(values.min() < 0) or scaled(values)[1])

    def _jumps(self, curve: Curve) -> Jumps | None:
        if not self.judges(curve):
            return None
        values, steps = curve.values[curve.finite], curve.steps[curve.finite]
        x, logarithmic = scaled(values)
        return jumps_of(steps, values, x, self._reach(len(values)), logarithmic)

    def _share(self, jumps: Jumps) -> float:
        """How far the curve is from a short to a long one, by its number of points: 0 to 1."""
        short, long = self.lengths
        return min(1.0, max(0.0, math.log(len(jumps.z) / short) / math.log(long / short)))

    def _limit(self, jumps: Jumps) -> float:
        few, many = self.deviations
        further = self.share_of_tail * (1.0 if self._share(jumps) < 1.0 else self.further_of_many)
        least = few + self._share(jumps) * (many - few) if jumps.logarithmic else self.deviations_below_zero
        return max(least, further * tail_limit(jumps.z, len(jumps.z)))

    def _jump(self, jumps: Jumps) -> float:
        few, many = self.smallest_jump
        return few + self._share(jumps) * (many - few) if jumps.logarithmic else self._jump_below_zero(jumps)

    def _jump_below_zero(self, jumps: Jumps) -> float:
        fallen = float(np.median(jumps.x[:3])) - float(jumps.x.min())
        return max(self.smallest_rise_in_spreads, self.smallest_share_of_fall * fallen)

    def _reach(self, count: int) -> int:
        return max(3, min(self.reach, count // 8))

    def _stretches(self, jumps: Jumps, high: NDArray[np.bool_]) -> list[tuple[int, int, float, int]]:
        """The first place of each spike, its last, the level beside it, and how many points of it are high."""
        places = np.flatnonzero(high)
        gaps = np.flatnonzero(np.diff(places) > self._reach(len(high))) + 1
        points = [each for each in np.split(places, gaps) if len(each)]
        found = []
        least = self.smallest_rise_of_several if jumps.logarithmic else self._jump_below_zero(jumps)
        deviations = self.deviations_of_several if jumps.logarithmic else self.deviations_below_zero
        for bump in bumps_of(jumps.x, deviations, least, self.share_of_tail):
            within = [each for each in points if each[0] <= bump.last and bump.first <= each[-1]]
            points = [each for each in points if not any(each is one for one in within)]
            first = min([bump.first, *(int(each[0]) for each in within)])
            last = max([bump.last, *(int(each[-1]) for each in within)])
            found.append((first, last, bump.level, bump.last - bump.first + 1))
        for each in points:
            peak = int(each[0]) + int(np.argmax(jumps.values[each[0] : each[-1] + 1]))
            found.append((int(each[0]), int(each[-1]), float(jumps.before[peak]), len(each)))
        return _joined(sorted(found))

    def _stands_out(self, curve: Curve, jumps: Jumps, first: int, last: int, beside: float, count: int) -> bool:
        """Whether it is above what the log rounds to, what was learnt, and the noise of the points around it."""
        values = jumps.values
        peak = first + int(np.argmax(values[first : last + 1]))
        level = jumps.value_of(beside)
        if is_rounding(values, float(values[peak]) - level):
            return False
        near = np.concatenate([jumps.x[max(0, first - self.there) : first], jumps.x[last + 1 : last + 1 + self.there]])
        noise = noise_of_points(near)
        if values[peak] < curve.floor_above(level, noise if jumps.logarithmic and count == 1 else 0.0):
            return False
        return len(near) < self.there or float(jumps.x[peak]) - beside >= self.deviations_there * noise

    def _comes_back(self, first: int, spikes: list[tuple[int, int, float, int]]) -> bool:
        """Whether it is one of several spikes that are not far from each other."""
        firsts = np.array([each[0] for each in spikes])
        until = np.searchsorted(firsts, firsts + self.returns_within, side="right")
        near = (firsts <= first) & (first <= firsts + self.returns_within)
        return bool((near & (until - np.arange(len(firsts)) >= self.returns)).any())

    def _has_consequence(self, jumps: Jumps, first: int, last: int, peak: int, beside: float) -> bool:
        """Whether a single point left the loss higher, or cost much of what had been learnt."""
        reach = self._reach(len(jumps.x))
        before, after = jumps.x[max(0, first - reach) : first], jumps.x[last + 1 : last + 1 + reach]
        if not len(before) or not len(after):
            return True  # nothing shows that it recovered
        rise = float(jumps.x[peak] - np.median(before))
        if len(after) >= self.fewest_after and float(np.median(after) - np.median(before)) >= self.kept_rise * rise:
            return True
        start, level, top = float(np.median(jumps.values[:3])), jumps.value_of(beside), float(jumps.values[peak])
        if self._share(jumps) < 1.0:
            return top - level >= self.lost_progress[0] * (start - level)
        if float(jumps.z[peak]) < self.times_beyond_noise * self._limit(jumps):
            return False
        learnt = math.log(start / level) if start > 0 and level > 0 else 0.0
        return top >= start or (learnt >= self.learnt and math.log(top / level) >= self.lost_progress[1] * learnt)

    def _episode(
        self, curve: Curve, jumps: Jumps, first: int, last: int, beside: float, count: int, *, often: bool
    ) -> Finding:
        values, steps = jumps.values, jumps.steps
        peak = first + int(np.argmax(values[first : last + 1]))
        level = jumps.value_of(beside)
        recovered = last < len(values) - 1
        early = (steps[last] - steps[0]) <= self.start_up * (steps[-1] - steps[0])
        transient = early and recovered and float(np.median(values[last + 1 :])) < values[0]
        huge = jumps.logarithmic and float(values[peak]) >= self.huge * level
        passed = count == 1 and recovered and not often and not self.threshold_alone
        passed = passed and not self._has_consequence(jumps, first, last, peak, beside)
        severity = Severity.CRITICAL if huge else Severity.INFO if passed else Severity.WARNING
        severity = Severity.INFO if transient else severity
        facts = CurveSpikeFacts(
            curve.name,
            float(values[peak]),
            level,
            float(jumps.z[peak]),
            self._limit(jumps),
            points=count,
            peak_step=int(steps[peak]) if peak > first else None,
            recovered=recovered,
        )
        return self.finding(
            curve,
            severity,
            facts,
            steps[first],
            steps[last],
            peak=steps[peak],
            recovered=True if recovered else None,
            count=count,
        )


def _joined(stretches: list[tuple[int, int, float, int]]) -> list[tuple[int, int, float, int]]:
    """Those that overlap as one, with the lower of their levels."""
    found: list[tuple[int, int, float, int]] = []
    for first, last, level, count in stretches:
        if found and first <= found[-1][1]:
            before = found.pop()
            found.append((before[0], max(before[1], last), min(before[2], level), before[3] + count))
        else:
            found.append((first, last, level, count))
    return found
