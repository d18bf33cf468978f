"""Detect gradient norms far above their baseline, the classic rule for them, and gradients that keep growing."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.curves.curves import Curve, RunCurves
from mlflow_stability.curves.levels import Levels, onset, read_levels
from mlflow_stability.detectors.detector import WHOLE, Detector, Point
from mlflow_stability.detectors.episodes import EpisodeFilter, RecentOutliers
from mlflow_stability.detectors.finding_type import Instability, Moves, Symptom
from mlflow_stability.detectors.loss_fall import FirstValues, start_level
from mlflow_stability.detectors.loss_level import GRADIENT_RISE
from mlflow_stability.detectors.progress import Progress
from mlflow_stability.detectors.streak import ClassicDetector, ClassicWindow
from mlflow_stability.kinds.rule import Rule, present
from mlflow_stability.vocabulary.facts import Facts, FollowedFacts, LimitFacts, times_beyond
from mlflow_stability.vocabulary.result import (
    CLIP_GRADIENTS,
    LOWER_RATE_2_TO_5,
    Action,
    Finding,
    Remedy,
    Severity,
    clipping_norm,
)
from mlflow_stability.vocabulary.text.phrases import factor, sigmas


@dataclass(frozen=True, slots=True)
class GradientSpikeFacts(FollowedFacts):
    kind = "gradient_explosion"
    metrics: ClassVar = {"grad_norm": "value", "level": "baseline", "z": "sigmas", "limit": "threshold"}

    value: float  # The gradient norm
    baseline: float  # The gradient norm that was normal before
    sigmas: float  # How far the norm is above that, in σ of its noise
    threshold: float  # From how many σ on it is too high
    steps_in_a_row: int | None = None  # Number of high norms in a row, where that made it a finding
    number: int | None = None  # Number of such findings up to this one in a short time; None where they are rare
    number_since: int | None = None  # The step of the first of them

    @property
    def exceeds(self) -> float | None:
        return times_beyond(self.sigmas, self.threshold)

    def statement(self, step: int, unit: str, /) -> str:
        times = "above"
        if self.baseline > 0:
            ratio = self.value / self.baseline
            times = (
                f"{factor(ratio)} times"
                if ratio >= 1000
                else f"{ratio:.0f} times"
                if ratio >= 3
                else f"{ratio:.2g} times"
            )
        row = "" if self.steps_in_a_row is None else f" for {self.steps_in_a_row} {unit}s in a row"
        again = "" if self.number is None else f"; number {self.number} since {unit} {self.number_since}"
        return (
            f"gradient norm {self.value:.4g} at {unit} {step}, {times} its baseline of {self.baseline:.4g}; "
            f"{sigmas(self.sigmas)} above it (threshold {self.threshold:.3g}σ){row}{again}."
        )


@dataclass(frozen=True, slots=True)
class GradientLimitFacts(LimitFacts):
    """A gradient norm that is above the threshold of the classic rule."""

    kind = "gradient_above_limit"
    metrics: ClassVar = {"grad_norm": "value", "limit": "threshold"}

    def sentence(self, step: int, unit: str = "step", /) -> str:
        return f"gradient norm {self.value:.4g} at {unit} {step} (threshold {self.threshold:.4g})."


@dataclass(slots=True)
class GradientExplosionState:
    episode_filter: EpisodeFilter = field(default_factory=EpisodeFilter)
    begun: FirstValues = field(default_factory=FirstValues)
    high: int = 0  # number of high norms in a row
    returns: RecentOutliers = field(default_factory=RecentOutliers)
    since: int = -1  # the first step of the finding that is not over
    progress: Progress = field(default_factory=Progress)


@dataclass(frozen=True, slots=True)
class GradientExplosion(Detector):
    """The gradient norm jumped far above its baseline.

    What it sees: a gradient norm, before clipping where possible, at least {threshold}σ above its baseline and
    {smallest_rise} times as high. Or {row} norms in a row at least {row_threshold}σ above it and {row_smallest_rise}
    times as high, unless norms of 0 are usual. Heavy-tailed noise raises the first σ to {share_of_tail} times, the
    second to {row_share_of_tail} times what it reaches once in {baseline.TAIL:one_in} steps. The baseline is the run's
    own, so a healthy norm of 300 is fine. Norms below {loss_fall.LEARNT:percent} of the first norm never count. A
    single high norm is INFO. {row} in a row, or finding number {returns} within {returns_within} steps, are a warning
    where the loss is at {progress.RISEN} times its lowest level or, after {progress.MIN_LOSSES} steps, above
    {progress.FALLEN:percent} of its start, up to {worse_within} steps later; INFO while the loss falls, or reaches new
    lows as it leaves a plateau. Without a loss, or with one that has no level, they are a warning. Critical from
    {critical_norm} on, if that is {critical_rise} times the baseline, unless it is below the first norms and the loss
    falls. Where the loss has no level, as in reinforcement learning and in a GAN, the ratio is
    {smallest_rise_without_level}. The finding ends after {calm_steps} steps below {calm_below}σ.

    Why it matters: one such step can move the weights far away. The loss often follows a few steps later; in fp16,
    infinity does.

    What to try: clip gradients; lower the learning rate by a factor of 2 to 5; inspect the loss and the batch at
    this step.

    When it is wrong: recurrent networks and reinforcement learning, where single large norms are normal and clipping
    handles them. Three in a row were found in none of 117 healthy trainings of 39 kinds.

    Reference: Pascanu et al. (arXiv:1211.5063); GLM-130B (arXiv:2210.02414, 3)
    """

    threshold: float = 5.5  # threshold in σ of the norm's logarithm above its baseline
    share_of_tail: float = 0.7
    """Factor on the σ that the norm's own noise reaches once in {baseline.TAIL:one_in} steps; the higher threshold
    counts."""
    smallest_rise: float = 8.0  # minimum ratio of the norm to its baseline
    row: int = 3  # number of norms in a row that are enough at the lower thresholds
    row_threshold: float = 4.0  # threshold in σ for norms in a row
    row_share_of_tail: float = 0.33  # the same as `share_of_tail` for norms in a row
    row_smallest_rise: float = 5.0  # minimum ratio to the baseline for norms in a row
    smallest_rise_without_level: float = GRADIENT_RISE  # minimum ratio where the loss has no level
    returns: int = 3  # number of findings within `returns_within` steps that makes each further one a warning
    returns_within: int = 1000  # number of steps over which they are counted
    critical_norm: float = 1000.0  # norm from which it is critical, with `critical_rise`
    critical_rise: float = 100.0  # minimum ratio to the baseline for a critical finding
    calm_below: float = 4.0  # a step below this σ counts as normal
    calm_steps: int = 8  # number of normal steps in a row that end the finding
    worse_within: int = 64  # number of steps after it in which a loss that gets worse makes it a warning
    threshold_alone: bool = False
    """Judge by `threshold` alone: neither the noise's tail nor a minimum ratio excuses a norm, norms in a row have no
    lower threshold, and a single high norm is a warning. `calm_steps` is 1 then, and `calm_below` at most
    `threshold`."""

    kind = "gradient_explosion"
    instability = Instability.HARMFUL
    noun = "a gradient explosion"
    plural = "gradient explosions"
    question = "Did the whole gradient explode?"
    check_by_hand = "Log the norm before clipping at each step; find the first step above 10 times its median."
    symptom = Symptom.RISING
    order = 60
    quantities = ("loss", "grad_norm")
    compared = ("grad_norm",)
    takes_losses = False
    places = WHOLE
    severities = (Severity.INFO, Severity.WARNING, Severity.CRITICAL)
    by_sensitivity: ClassVar[Mapping[str, Moves]] = {
        "threshold": "times",
        "share_of_tail": "times",
        "smallest_rise": "power",
        "row_threshold": "times",
        "row_share_of_tail": "times",
        "row_smallest_rise": "power",
    }
    remedies = (CLIP_GRADIENTS, LOWER_RATE_2_TO_5, Remedy(Action.INSPECT_LOSS_AND_BATCH))
    state_type = GradientExplosionState

    def __post_init__(self) -> None:
        """Let each excursion above a threshold that decides alone be a finding."""
        if self.threshold_alone:
            object.__setattr__(self, "calm_below", min(self.calm_below, self.threshold))
            object.__setattr__(self, "calm_steps", 1)

    def step(self, state: GradientExplosionState, point: Point) -> tuple[GradientExplosionState, Finding | None]:
        event = self._look(state, point)
        waiting = state.progress.waiting
        if event is None and waiting is not None and not state.progress.losses.reaches_new_lows(point.place):
            goes_on = point.step - waiting.step <= self.worse_within
            event = state.progress.judge(None, point, goes_on=goes_on)
            if event is not None:
                state.episode_filter.reported = max(state.episode_filter.reported, event.severity)
        return state, event

    def _look(self, state: GradientExplosionState, point: Point) -> Finding | None:
        if point.z < self.calm_below:
            state.high = 0
            if point.finite:
                state.begun.take(point.value)
                if state.episode_filter.reported:
                    state.episode_filter.note_calm(self.calm_steps)
            return None
        limit = self._exceeded_threshold(state, point)
        if limit is None:
            return None
        often = None
        if not state.episode_filter.reported:
            state.since = point.step
            often = state.returns.take(point.step, self.returns, self.returns_within)
        huge = point.value >= self.critical_norm and point.value >= point.center * self.critical_rise
        lasts = state.high >= self.row
        losses = state.progress.losses
        falls = losses.is_falling(point.place) or losses.reaches_new_lows(point.place)
        falls = falls and point.has_level and not self.threshold_alone
        huge = huge and not (falls and point.value < start_level(state.begun.first))
        severity = Severity.WARNING if lasts or often or self.threshold_alone else Severity.INFO
        since = None if state.since == point.step else state.since
        facts = GradientSpikeFacts(
            point.value,
            point.center,
            point.z,
            limit,
            state.high if lasts else None,
            *(often or (None, None)),
            found_first=since,
        )
        event = self.finding(point, Severity.CRITICAL if huge else severity, facts)
        clip = replace(CLIP_GRADIENTS, target=clipping_norm(point.center, point.value))
        event = replace(
            event, remedies=tuple(clip if remedy == CLIP_GRADIENTS else remedy for remedy in event.remedies)
        )
        if falls and event.severity is Severity.WARNING:
            state.progress.waiting = event
            event = replace(event, severity=Severity.INFO)
        return event if state.episode_filter.report(event.severity) else None

    def _exceeded_threshold(self, state: GradientExplosionState, point: Point) -> float | None:
        """Return the threshold in σ that the norm exceeds along with its ratio; None for a normal norm."""
        if self.threshold_alone:
            return self.threshold if point.z >= self.threshold else None
        row_rise, rise = self.row_smallest_rise, self.smallest_rise
        if not point.has_level:
            row_rise = rise = self.smallest_rise_without_level
        limit = max(self.row_threshold, self.row_share_of_tail * point.tail)
        high = point.logarithmic and point.z >= limit and point.value >= point.center * row_rise
        state.high = state.high + 1 if high else 0
        if state.high < self.row:
            limit = max(self.threshold, self.share_of_tail * point.tail)
            if point.z < limit or point.value < point.center * rise:
                return None
        return limit if state.begun.matters(point.value, point.center) else None


@dataclass(frozen=True, slots=True)
class GradientExplosionClassic(ClassicDetector):
    """The gradient norm is above {largest}, or {deviations} standard deviations above its mean.

    What it sees: a norm above {largest}, or above the mean plus {deviations} standard deviations of the {window} values
    before it, once there are {least_values}. High norms in a row are one finding.

    Why it matters: one such step can move the weights far away.

    What to try: clip gradients; lower the learning rate by a factor of 2 to 5; inspect the loss at this step.

    When it is wrong: often. Norms are skewed, so that as many deviations are reached every hundred steps, and some
    healthy models always have a norm above {largest}. `gradient_explosion` without `:classic` avoids both.

    Reference: Pascanu et al. (arXiv:1211.5063)
    """

    largest: float = 100.0  # norm above which it has exploded, whatever came before
    deviations: float = 3.0  # threshold in standard deviations above the mean

    kind = "gradient_explosion"
    order = 410
    quantities = ("grad_norm",)
    places = WHOLE
    remedies = GradientExplosion.remedies

    def judge(self, state: ClassicWindow, value: float) -> Facts | None:
        limit = self.largest
        if len(state.values) >= self.least_values:
            mean = state.mean()
            by_deviation = mean + self.deviations * state.deviation(mean)
            limit = limit if math.isnan(by_deviation) else min(limit, by_deviation)
        return GradientLimitFacts(value, limit) if value > limit else None


@dataclass(frozen=True, slots=True)
class GradientRiseFacts(Facts):
    """A gradient norm that kept growing while the loss rose."""

    kind = "gradient_rise"

    signal: str  # The gradient norm, by the name that the log gives it
    level: float  # Its lowest level
    last: float  # The norm at the end
    highest: float  # The highest norm since it grew
    threshold: float  # From how many times its lowest level on it is a finding

    @property
    def grown(self) -> float:
        """The norm at the end as a multiple of its lowest level."""
        return self.last / self.level if self.level > 0 else math.inf

    def numbers(self) -> dict[str, float]:
        return {"level": self.level, "highest": self.highest, "last": self.last, "grown": self.grown}

    def sentence(self, step: int, unit: str = "step", /) -> str:
        return (
            f"{self.signal} grew from {unit} {step} on: {self.last:.4g} at the end, {self.grown:,.0f} times its level "
            f"of {self.level:.4g} (threshold {self.threshold:,.0f} times), while the loss rose."
        )


@dataclass(frozen=True, slots=True)
class GradientRiseRule(Rule):
    """The gradient norm grew by a factor of {smallest_rise:exp}, and the loss ended above its best.

    What it sees: of {fewest_levels} levels or more of the whole model's gradient norm the last ones, all at least
    {smallest_rise:exp} times its lowest level over {held} of them and {above_earlier:exp} times its highest level
    before the growth; in a run whose loss ended {loss_rise:exp_rise} or more above its best. The reported step is the
    first one at {deviations}σ of a level above the lowest.

    When it is wrong: a loss that is multiplied by a growing factor on purpose; a norm that is logged before unscaling.
    """

    kind = "gradient_explosion"
    order = 60
    by_sensitivity: ClassVar[Mapping[str, Moves]] = {"smallest_rise": "times", "above_earlier": "times"}
    remedies = GradientExplosion.remedies

    fewest_levels: int = 20  # minimum number of levels
    held: int = 5  # number of levels for which the lowest level must last
    smallest_rise: float = math.log(100)  # minimum rise of the end above the lowest level, in nats
    above_earlier: float = math.log(30)  # minimum rise above the highest level before the growth, in nats
    deviations: float = 6.0  # σ of the noise of a level at which the growth starts
    loss_rise: float = math.log(1.1)  # minimum rise of the loss at the end above its best, in nats

    def like(self, detector: Detector) -> Rule:
        if not isinstance(detector, GradientExplosion) or detector.threshold_alone:
            return self
        return replace(self, smallest_rise=max(self.smallest_rise, math.log(max(1.0, detector.smallest_rise))))

    def find(self, curves: RunCurves) -> list[Finding]:
        return present(self._judge(norm, curves) for norm in curves.norms if not norm.place)

    def _judge(self, norm: Curve, curves: RunCurves) -> Finding | None:
        loss = next((curve for curve in curves.losses if curve.attempt == norm.attempt and curve.has_level), None)
        levels = read_levels(norm)
        if loss is None or levels is None or not levels.logarithmic or len(levels) < self.fewest_levels:
            return None
        medians = self._running_median(levels)
        best = int(np.argmin(medians))
        floor, end = float(medians[best]), float(levels.x[-2:].min())
        if end - floor < self.smallest_rise or not self._has_risen(loss.last_phase):
            return None
        first = onset(levels, best, floor + max(self.deviations * levels.noise, math.log(1.5)))
        earlier = levels.x[: max(1, first // levels.size)]
        if end - float(np.sort(earlier)[-max(1, len(earlier) // 20)]) < self.above_earlier:
            return None
        steps, values = levels.raw_steps, norm.values[norm.finite]
        peak, last = first + int(np.argmax(values[first:])), float(np.median(values[-5:]))
        facts = GradientRiseFacts(norm.name, math.exp(floor), last, float(values[peak]), math.exp(self.smallest_rise))
        return self.finding(norm, Severity.WARNING, facts, steps[first], norm.steps[-1], peak=steps[peak])

    def _has_risen(self, loss: Curve) -> bool:
        levels = read_levels(loss)
        if levels is None or not levels.logarithmic or len(levels) < self.fewest_levels:
            return False
        if loss.values[loss.finite][-1] < loss.floor:
            return False
        rise = float(levels.x[-2:].min() - self._running_median(levels).min())
        return rise > max(self.loss_rise, 3 * levels.noise)

    def _running_median(self, levels: Levels) -> NDArray[np.float64]:
        return np.asarray(np.median(np.lib.stride_tricks.sliding_window_view(levels.x, self.held), axis=1))
