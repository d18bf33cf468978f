"""Find losses that were far above the points before and after them, in one point or in several."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.curves.curves import Curve, RunCurves
from mlflow_stability.curves.levels import is_rounding, to_judged_scale
from mlflow_stability.curves.prominence import Jumps, find_bumps, find_jumps, point_noise, tail_limit
from mlflow_stability.detectors.detector import Detector
from mlflow_stability.detectors.finding_type import Moves
from mlflow_stability.kinds.loss.loss_spike import LossSpike
from mlflow_stability.kinds.rule import Rule
from mlflow_stability.vocabulary.facts import Facts
from mlflow_stability.vocabulary.result import Finding, Severity
from mlflow_stability.vocabulary.text.phrases import sigmas

_DETECTOR = LossSpike()  # thresholds that mean the same in a whole curve are the detector's


@dataclass(frozen=True, slots=True)
class CurveSpikeFacts(Facts):
    """A loss that was far above both what came before and what came after."""

    kind = "curve_spike"
    metrics: ClassVar = {"peak": "value", "before": "baseline", "z": "sigmas"}

    signal: str  # The loss, by the name that the log gives it
    value: float  # The highest loss, in its unit
    baseline: float  # The loss around it, in its unit
    sigmas: float  # How far the highest loss is above its neighbours, in σ of the noise of single points
    threshold: float  # From how many σ on a single point is a spike
    points: int  # Number of high points
    peak_step: int | None  # The step of the highest loss; None where it is the first
    recovered: bool  # Whether it was over by the end of the log

    def sentence(self, step: int, unit: str = "step", /) -> str:
        top = step if self.peak_step is None else self.peak_step
        above = f" ({sigmas(self.sigmas)}, threshold {self.threshold:.3g}σ)" if self.sigmas >= self.threshold else ""
        rise = f"{self.signal} jumped to {self.value:.4g} at {unit} {top} from about {self.baseline:.4g}{above}"
        if self.points > 1:
            start = "" if self.peak_step is None else f" at {unit} {step}"
            rise = f"{self.signal} rose from about {self.baseline:.4g}{start} to {self.value:.4g} at {unit} {top}"
        if not self.recovered:
            return f"{rise}; the log ends there."
        return f"{rise} and recovered after {self.points} points." if self.points > 1 else f"{rise} and recovered."


class Spike(NamedTuple):
    """One or several high points of a curve, by index."""

    first: int
    last: int
    level: float  # the level beside it, as the curve is scaled
    points: int  # number of high points

    def peak(self, jumps: Jumps) -> int:
        return self.first + int(np.argmax(jumps.values[self.first : self.last + 1]))


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
    critical. One in a training of fewer than {lengths[0]} points is INFO in a log of {many_attempts} trainings or more.
    A single point is INFO where it is the last one before another training in the same log, and where it recovered. The
    latter is a warning where {fewest_after} points or more after it keep
    {kept_rise:percent} of its rise, where it is one of {returns} spikes within {returns_within} points, or where it
    undid {lost_progress[0]:percent} of all progress made until then. From {lengths[1]} points on, it must be at
    {times_beyond_noise} times its threshold in σ and undo {lost_progress[1]:percent} of the progress, in nats, or all
    of it where the loss has not yet fallen by a factor of {learnt:exp}.

    When it is wrong: validations of few examples. A training that starts with a high learning rate overshoots: a spike
    that ends within the first {start_up:percent} of the steps is INFO only.
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

    fewest_points: int = 6  # minimum number of points
    most_points: int = 100_000  # maximum number of points; longer curves are left to the detector
    lengths: tuple[int, int] = (16, 256)
    """Numbers of points of a short and of a long curve: thresholds with two values move from the one to the other."""
    further_of_many: float = 1.3  # factor on the tail for long curves, which the detector judges as well
    share_of_tail: float = _DETECTOR.share_of_tail  # factor on the tail of the curve's own noise; 0 turns this off
    deviations: tuple[float, float] = (5.0, _DETECTOR.threshold)  # thresholds in σ for short and for long curves
    smallest_jump: tuple[float, float] = (math.log(1.3), math.log(1.15))
    """Minimum rises in nats for the same two lengths."""
    deviations_of_several: float = 7.0
    """Threshold in σ for several points, in the noise of such stretches: rule_recall.py finds no more healthy runs
    flagged than with single points alone."""
    smallest_rise_of_several: float = math.log(1.3)
    """Minimum rise of several points, in nats: healthy validations vary by 10 to 20 %."""
    deviations_below_zero: float = _DETECTOR.threshold_of_differences
    """Threshold in σ for a loss that reaches zero or below."""
    smallest_rise_in_spreads: float = 1.0  # minimum rise of that loss in units of the curve's own standard deviation
    smallest_share_of_fall: float = 0.1  # minimum rise of that loss as a share of its fall to its lowest
    there: int = 24  # number of points on each side that show the local noise
    deviations_there: float = 4.0  # minimum rise in σ of the local noise
    agreeing: tuple[float, float] = (2.0, math.log(2))
    """σ and rise in nats that are enough where training and validation loss jump in the same step: then the model
    jumped, not one batch."""
    agreeing_with_gradient: tuple[float, float] = (3.5, math.log(1.2))
    """The same where the gradient norm jumps with the loss."""
    agreeing_share_of_tail: float = 0.75  # factor on the tail then: where few examples decide, one moves both
    reach: int = 8  # maximum number of neighbours on each side; of short curves an eighth of the points
    start_up: float = 0.05  # a spike within this share of the run that recovered is a start-up transient, and INFO only
    huge: float = _DETECTOR.critical_rise  # ratio to the level before from which a spike is critical
    lost_progress: tuple[float, float] = (0.1, 0.25)
    """Rise of a single point that recovered, as a share of the progress until then, from which it is a warning: for
    short curves, each of whose points may stand for many steps, and for long ones, in nats."""
    times_beyond_noise: float = 1.25
    """Minimum multiple of its threshold in σ for that, in longer curves; also where nothing had been learnt."""
    learnt: float = math.log(2)
    """Minimum progress in nats for that, in longer curves; below it the rise must undo all of the progress."""
    kept_rise: float = 0.25  # share of the rise that the points after a spike keep where it made the loss worse
    fewest_after: int = 3  # minimum number of points after it that show this
    returns: int = _DETECTOR.returns
    """Number of spikes within `returns_within` points that makes each further one a warning."""
    returns_within: int = _DETECTOR.returns_within  # number of points over which they are counted
    many_attempts: int = 8
    """Number of trainings in one log from which a spike in one of fewer points than a short curve is INFO."""
    threshold_alone: bool = False  # whether every spike is a warning, as for a threshold of your own

    def like(self, detector: Detector) -> Rule:
        """Take σ, ratios and counts from the detector; with `threshold_alone`, σ decides whatever the size and tail."""
        if not isinstance(detector, LossSpike):
            return self
        if not detector.threshold_alone:
            return self._with_thresholds_of(detector)
        threshold = detector.threshold
        return replace(
            self,
            deviations=(threshold, threshold),
            deviations_of_several=threshold,
            deviations_below_zero=threshold,
            agreeing=(threshold, 0.0),
            agreeing_with_gradient=(threshold, 0.0),
            agreeing_share_of_tail=0.0,
            smallest_jump=(0.0, 0.0),
            smallest_rise_in_spreads=0.0,
            smallest_share_of_fall=0.0,
            share_of_tail=0.0,
            deviations_there=0.0,
            threshold_alone=True,
        )

    def _with_thresholds_of(self, detector: LossSpike) -> Rule:
        times = detector.threshold / _DETECTOR.threshold
        with_gradient = detector.threshold_with_gradient / _DETECTOR.threshold_with_gradient
        below_zero = detector.threshold_of_differences / _DETECTOR.threshold_of_differences
        rule = replace(
            self,
            deviations=(self.deviations[0] * times, self.deviations[1] * times),
            deviations_of_several=self.deviations_of_several * times,
            deviations_below_zero=self.deviations_below_zero * below_zero,
            agreeing=(self.agreeing[0] * times, self.agreeing[1]),
            agreeing_with_gradient=(self.agreeing_with_gradient[0] * with_gradient, self.agreeing_with_gradient[1]),
            share_of_tail=self.share_of_tail * (detector.share_of_tail / _DETECTOR.share_of_tail),
            huge=detector.critical_rise,
            returns=detector.returns,
            returns_within=detector.returns_within,
        )
        if detector.smallest_rise == _DETECTOR.smallest_rise:
            return rule
        rise = math.log(max(1.0, detector.smallest_rise))
        return replace(
            rule,
            smallest_jump=(rise, rise),
            smallest_rise_of_several=rise,
            agreeing=(rule.agreeing[0], max(rise, rule.agreeing[1])),
            agreeing_with_gradient=(rule.agreeing_with_gradient[0], max(rise, rule.agreeing_with_gradient[1])),
        )

    def find(self, curves: RunCurves) -> list[Finding]:
        losses = [curve.since_test for curve in (*curves.losses, *curves.validations, *curves.averages)]
        judged = [curve for curve in losses if not curve.part and curve.has_level and len(curve.steps)]
        jumps_of_curve = {id(curve): self._jumps(curve) for curve in (*judged, *curves.norms)}
        findings: list[Finding] = []
        attempts = {curve.attempt for curve in judged}
        for curve in judged:
            jumps = jumps_of_curve[id(curve)]
            if jumps is None:
                continue
            high = jumps.far(self._limit(jumps), self._smallest_jump(jumps))
            tail = self.agreeing_share_of_tail * tail_limit(jumps.z, len(jumps.z))
            for other in (*judged, *curves.norms) if jumps.logarithmic else ():
                others = jumps_of_curve[id(other)]
                if others is None or other.attempt != curve.attempt or other.quantity == curve.quantity:
                    continue
                is_gradient = other.quantity == "grad_norm"
                deviations, height = self.agreeing_with_gradient if is_gradient else self.agreeing
                shared = np.isin(jumps.steps, others.steps[others.far(deviations, height)])
                high |= jumps.far(max(deviations, tail) if is_gradient else deviations, height) & shared
            spikes = [spike for spike in self._spikes(jumps, high) if self._stands_out(curve, jumps, spike)]
            of_curve = [self._finding(curve, jumps, spike, self._is_frequent(spike, spikes)) for spike in spikes]
            goes_on = any(other.attempt > curve.attempt for other in losses) and bool(curve.finite[-1])
            of_curve = [_as_last_value(finding) if goes_on else finding for finding in of_curve]
            findings += [self._of_many(finding, jumps, len(attempts)) for finding in of_curve]
        return findings

    def _of_many(self, finding: Finding, jumps: Jumps, attempts: int) -> Finding:
        """Return the finding as information where it may be chance: some of many short trainings have one."""
        by_chance = attempts >= self.many_attempts and len(jumps.z) < self.lengths[0]
        if not by_chance or finding.severity is not Severity.WARNING or self.threshold_alone:
            return finding
        return replace(finding, severity=Severity.INFO)

    def judges(self, curve: Curve) -> bool:
        values = curve.values[curve.finite]
        fits = self.fewest_points <= len(values) <= self.most_points
        return fits and (bool(values.min() < 0) or to_judged_scale(values)[1])

    def _jumps(self, curve: Curve) -> Jumps | None:
        if not self.judges(curve):
            return None
        values, steps = curve.values[curve.finite], curve.steps[curve.finite]
        x, logarithmic = to_judged_scale(values)
        return find_jumps(steps, values, x, self._reach(len(values)), logarithmic)

    def _share(self, jumps: Jumps) -> float:
        """Return by its number of points where the curve lies between a short and a long one, from 0 to 1."""
        short, long = self.lengths
        return min(1.0, max(0.0, math.log(len(jumps.z) / short) / math.log(long / short)))

    def _limit(self, jumps: Jumps) -> float:
        few, many = self.deviations
        further = self.share_of_tail * (1.0 if self._share(jumps) < 1.0 else self.further_of_many)
        least = few + self._share(jumps) * (many - few) if jumps.logarithmic else self.deviations_below_zero
        return max(least, further * tail_limit(jumps.z, len(jumps.z)))

    def _smallest_jump(self, jumps: Jumps) -> float:
        few, many = self.smallest_jump
        return few + self._share(jumps) * (many - few) if jumps.logarithmic else self._smallest_jump_below_zero(jumps)

    def _smallest_jump_below_zero(self, jumps: Jumps) -> float:
        fallen = float(np.median(jumps.x[:3])) - float(jumps.x.min())
        return max(self.smallest_rise_in_spreads, self.smallest_share_of_fall * fallen)

    def _reach(self, count: int) -> int:
        return max(3, min(self.reach, count // 8))

    def _spikes(self, jumps: Jumps, high: NDArray[np.bool_]) -> list[Spike]:
        """Return bumps of several points, joined with the high points in them, and the other high points."""
        indices = np.flatnonzero(high)
        gaps = np.flatnonzero(np.diff(indices) > self._reach(len(high))) + 1
        groups = [(int(group[0]), int(group[-1]), len(group)) for group in np.split(indices, gaps) if len(group)]
        spikes = []
        least = self.smallest_rise_of_several if jumps.logarithmic else self._smallest_jump_below_zero(jumps)
        deviations = self.deviations_of_several if jumps.logarithmic else self.deviations_below_zero
        for bump in find_bumps(jumps.x, deviations, least, self.share_of_tail):
            inside = [group for group in groups if group[0] <= bump.last and bump.first <= group[1]]
            groups = [group for group in groups if group not in inside]
            first = min([bump.first, *(group[0] for group in inside)])
            last = max([bump.last, *(group[1] for group in inside)])
            spikes.append(Spike(first, last, bump.level, bump.last - bump.first + 1))
        for first, last, count in groups:
            peak = first + int(np.argmax(jumps.values[first : last + 1]))
            spikes.append(Spike(first, last, float(jumps.before[peak]), count))
        return _join_overlapping(spikes)

    def _stands_out(self, curve: Curve, jumps: Jumps, spike: Spike) -> bool:
        """Return whether a spike is above rounding, above what was learnt, and above the noise around it."""
        values, peak, level = jumps.values, spike.peak(jumps), jumps.value_of(spike.level)
        if is_rounding(values, float(values[peak]) - level):
            return False
        before = jumps.x[max(0, spike.first - self.there) : spike.first]
        near = np.concatenate([before, jumps.x[spike.last + 1 : spike.last + 1 + self.there]])
        if len(near) < 2:
            return False  # high points all over the run
        noise = point_noise(near)
        if values[peak] < curve.floor_above(level, noise if jumps.logarithmic and spike.points == 1 else 0.0):
            return False
        return len(near) < self.there or float(jumps.x[peak]) - spike.level >= self.deviations_there * noise

    def _is_frequent(self, spike: Spike, spikes: list[Spike]) -> bool:
        firsts = np.array([other.first for other in spikes])
        until = np.searchsorted(firsts, firsts + self.returns_within, side="right")
        near = (firsts <= spike.first) & (spike.first <= firsts + self.returns_within)
        return bool((near & (until - np.arange(len(firsts)) >= self.returns)).any())

    def _has_consequence(self, jumps: Jumps, spike: Spike) -> bool:
        """Return whether a single point left the loss higher, or undid much of the progress."""
        reach, peak = self._reach(len(jumps.x)), spike.peak(jumps)
        before = jumps.x[max(0, spike.first - reach) : spike.first]
        after = jumps.x[spike.last + 1 : spike.last + 1 + reach]
        if not len(before) or not len(after):
            return True  # nothing shows that it recovered
        rise = float(jumps.x[peak] - np.median(before))
        if len(after) >= self.fewest_after and float(np.median(after) - np.median(before)) >= self.kept_rise * rise:
            return True
        start, level, top = float(np.median(jumps.values[:3])), jumps.value_of(spike.level), float(jumps.values[peak])
        if self._share(jumps) < 1.0:
            return top - level >= self.lost_progress[0] * (start - level)
        if float(jumps.z[peak]) < self.times_beyond_noise * self._limit(jumps):
            return False
        learnt = math.log(start / level) if start > 0 and level > 0 else 0.0
        return top >= start or (learnt >= self.learnt and math.log(top / level) >= self.lost_progress[1] * learnt)

    def _finding(self, curve: Curve, jumps: Jumps, spike: Spike, is_frequent: bool) -> Finding:
        values, steps, peak, last = jumps.values, jumps.steps, spike.peak(jumps), spike.last
        level, recovered = jumps.value_of(spike.level), last < len(values) - 1
        early = (steps[last] - steps[0]) <= self.start_up * (steps[-1] - steps[0])
        if early and recovered and float(np.median(values[last + 1 :])) < values[0]:
            severity = Severity.INFO
        elif jumps.logarithmic and float(values[peak]) >= self.huge * level:
            severity = Severity.CRITICAL
        elif spike.points > 1 or not recovered or is_frequent or self.threshold_alone:
            severity = Severity.WARNING
        else:
            severity = Severity.WARNING if self._has_consequence(jumps, spike) else Severity.INFO
        facts = CurveSpikeFacts(
            curve.name,
            float(values[peak]),
            level,
            float(jumps.z[peak]),
            self._limit(jumps),
            points=spike.points,
            peak_step=int(steps[peak]) if peak > spike.first else None,
            recovered=recovered,
        )
        start, end, ended = steps[spike.first], steps[last], True if recovered else None
        return self.finding(curve, severity, facts, start, end, peak=steps[peak], recovered=ended, count=spike.points)


def _as_last_value(finding: Finding) -> Finding:
    """Return the finding as information where a single last value is high and another training follows in the log.

    Whoever started that one has stopped this one: its last value is often that of a part of an epoch.
    """
    alone = finding.count == 1 and finding.recovered is None and finding.severity is Severity.WARNING
    return replace(finding, severity=Severity.INFO) if alone else finding


def _join_overlapping(spikes: list[Spike]) -> list[Spike]:
    joined: list[Spike] = []
    for spike in sorted(spikes):
        if joined and spike.first <= joined[-1].last:
            before = joined.pop()
            last, level = max(before.last, spike.last), min(before.level, spike.level)
            joined.append(Spike(before.first, last, level, before.points + spike.points))
        else:
            joined.append(spike)
    return joined
