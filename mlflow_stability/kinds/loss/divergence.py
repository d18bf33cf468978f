"""Detect a loss that rose above its baseline and stayed there, and the classic rule for it."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import ClassVar

from mlflow_stability.detectors.detector import Detector, Point
from mlflow_stability.detectors.episodes import EpisodeFilter
from mlflow_stability.detectors.finding_type import Instability, Moves, Symptom
from mlflow_stability.detectors.growing_weight import HIGHEST_RISE, TermWeight
from mlflow_stability.detectors.learning_rate_restart import RateRestart
from mlflow_stability.detectors.loss_fall import FirstValues, start_level
from mlflow_stability.detectors.loss_level import LEAST_SIZE, LOSS_RISE, RISE
from mlflow_stability.detectors.slow_rise import CLIFF_RETURN, SlowRise
from mlflow_stability.detectors.streak import ClassicDetector, ClassicWindow
from mlflow_stability.vocabulary.facts import Facts, LossRiseFacts, rises_beyond, times_beyond
from mlflow_stability.vocabulary.loss_level import NoLevel
from mlflow_stability.vocabulary.result import CLIP_GRADIENTS, LOWER_RATE_2_TO_5, Action, Finding, Remedy, Severity
from mlflow_stability.vocabulary.text.phrases import risen, sigmas

SLOW_STEPS = 32  # number of losses in each mean of `SlowRise`


@dataclass(slots=True)
class DivergenceState:
    episode_filter: EpisodeFilter = field(default_factory=EpisodeFilter)
    high: int = 0  # the last steps as bits, the newest lowest: 1 for a high loss
    excesses: deque[float] = field(default_factory=deque)  # each high loss as a multiple of the threshold
    baseline: tuple[float, float] | None = None  # center and scale of the baseline at the first high loss
    baseline_age: int = 0  # number of losses since then
    onset: int | None = None  # the first step of the divergence that is not over
    begun: FirstValues = field(default_factory=FirstValues)
    slow: SlowRise = field(default_factory=SlowRise)
    restart: RateRestart = field(default_factory=RateRestart)
    weight: TermWeight = field(default_factory=TermWeight)
    signed: bool = False  # whether the loss has ever been negative
    risen_from: float | None = None  # logarithm of the level from which the loss rose slowly; None once it is back


@dataclass(frozen=True, slots=True)
class DivergenceFacts(LossRiseFacts):
    """A loss that jumped and stayed high for most of the last steps."""

    kind = "divergence"
    metrics: ClassVar = {
        "loss": "value",
        "level": "baseline",
        "z": "sigmas",
        "high_steps": "high_steps",
        "first_high": "first_high",
        "onset": "onset",
    }

    sigmas: float  # How far the loss is above that, in σ of its noise
    threshold: float  # From how many σ on a loss is high
    high_steps: int  # Number of high losses among the last ones
    of_steps: int  # Number of these last losses
    first_high: int | None = None  # The step of the first of the high losses
    onset: int | None = None  # The first step of the divergence, where it was found before and became worse
    exceeds: float | None = None  # By how many times the high losses exceed what counts as high

    def sentence(self, step: int, unit: str = "step", /) -> str:
        return (
            f"loss {self.value:.4g} at {unit} {step}, {sigmas(self.sigmas)} above its baseline of {self.baseline:.4g}; "
            f"above the threshold ({self.threshold:g}σ) in {self.high_steps} of the last {self.of_steps} {unit}s."
        )


@dataclass(frozen=True, slots=True)
class SlowRiseFacts(LossRiseFacts):
    """A loss that rose slowly: `value` is the mean of the last losses, `baseline` the level from which it rose."""

    kind = "slow_rise"
    metrics: ClassVar = {"loss": "value", "level": "baseline", "rise": "rise", "errors": "errors", "limit": "threshold"}

    of_steps: int  # Number of losses in the mean
    rise: float  # How far it rose, as a share of that level
    errors: float | None = None  # The rise in standard errors of its noise; None where it became worse later
    threshold: float | None = None  # From how many standard errors on it is a rise; None where it became worse later
    exceeds: float | None = None
    """By how many times it exceeds that threshold; where it became worse later, the smallest rise of a high loss."""
    late_share: float | None = None  # Share of the rise that came in the last 128 losses

    def sentence(self, step: int, unit: str = "step", /) -> str:
        above = risen(self.rise, f"{self.baseline:.4g}")
        return f"loss rose slowly: mean of the last {self.of_steps} {unit}s {self.value:.4g} at {unit} {step}, {above}."


@dataclass(frozen=True, slots=True)
class SizeFacts(Facts):
    """A loss whose level does not measure progress, and that is far larger than at its start, whatever its sign."""

    kind = "loss_size"
    metrics = ("loss", "early", "high_steps", "first_high")

    loss: float  # The loss, in its unit
    early: float  # Median size of the first losses, in the unit of the loss
    early_steps: int  # Number of these losses
    high_steps: int  # Number of losses above the threshold among the last ones
    of_steps: int  # Number of these last losses
    threshold: float  # From which size on a loss is high, in the unit of the loss
    first_high: int  # The step of the first of the high losses

    def sentence(self, step: int, unit: str = "step", /) -> str:
        return (
            f"loss {self.loss:.4g} at {unit} {step}; its size was {self.early:.4g} in the first {self.early_steps} "
            f"{unit}s, and {self.high_steps} of the last {self.of_steps} are above the threshold of "
            f"{self.threshold:.4g}."
        )


@dataclass(frozen=True, slots=True)
class Divergence(Detector):
    """The loss rose above its baseline and stayed there.

    What it sees: {high_steps} of the last {of_steps} losses at least {threshold}σ and {smallest_rise:rise} above their
    baseline. Also a slow rise: the mean of 32 steps lies at least {slow_smallest_rise:rise} and {slow_threshold}
    standard errors above the lowest mean of the 512 steps before, and still rises. That threshold of {slow_threshold}
    rises by {slow_per_longer_run} with each doubling of the run from 500 steps on, and by {slow_per_correlation} with
    each doubling of the mean's error by correlated noise. After a level that held fell at once, as at the start of an
    epoch, a rise counts from {slow_rise.CLIFF_RETURN:percent} of that fall on. High losses are a warning, and critical
    where {high_steps} of them are {threshold:sure}σ and {smallest_rise:sure_rise} above their baseline. A slow rise is
    critical from {slow_critical_rise:rise} on. Losses below {loss_fall.LEARNT:percent} of the first loss never count,
    and a rise to less than {kept:percent} of the start is INFO. The finding ends after {calm_steps} steps without a
    high loss, or when the higher level has become the baseline.

    Why it matters: a diverging run rarely recovers by itself, and every further step is lost.

    What to try: restart from a checkpoint before the divergence; lower the learning rate by a factor of 2 to 5;
    lengthen the warm-up; clip gradients.

    When it is wrong: harder data from some step on (a curriculum, a new mixture). The
    {learning_rate_restart.RESTART_STEPS} steps after a learning-rate restart are ignored, and the
    {growing_weight.GRACE_STEPS} after a schedule raised the weight of a loss term, unless the loss rose by a larger
    factor than the weight in {growing_weight.LOOKBACK_STEPS} steps or is at {growing_weight.HIGHEST_RISE} times its
    first ones. Where another term is added and the loss is then at another level, it gets a baseline of its own. Losses
    that have been negative are judged by jumps only, at {threshold_of_differences}σ. In adversarial training, such as a
    GAN, one loss rises as the other model learns: there only positive losses at {smallest_rise_adversarial} times their
    baseline count. Of other losses whose level does not measure progress, as in reinforcement learning, only those
    above {least_size_without_level} and at {smallest_rise_without_level} times the size of the first
    {loss_fall.FIRST_VALUES} count; they are critical.

    Reference: OPT-175B (arXiv:2205.01068, 2.5); Page, Continuous inspection schemes, Biometrika 41 (1954)
    """

    threshold: float = 4.0  # threshold of a single loss, in σ above its baseline
    threshold_of_differences: float = 8.0  # threshold in σ where the loss can be negative
    high_steps: int = 12  # how many of the last `of_steps` losses must be above the threshold
    of_steps: int = 16  # number of recent losses that are counted
    smallest_rise: float = 1.10  # minimum ratio of a high loss to its baseline
    smallest_rise_adversarial: float = RISE  # minimum ratio of a high loss in adversarial training, such as a GAN
    smallest_rise_without_level: float = LOSS_RISE
    """Minimum ratio of a loss whose level does not measure progress to the median size of the first
    {loss_fall.FIRST_VALUES}."""
    least_size_without_level: float = LEAST_SIZE  # minimum size of a loss without a level
    slow_threshold: float = 7.0  # threshold of a slow rise, in standard errors of a mean of 32 steps
    slow_per_longer_run: float = 0.4
    """Increase of `slow_threshold` for each doubling of the run, from 500 steps on: a long run has more chances."""
    slow_per_correlation: float = 4.0  # increase of `slow_threshold` per doubling of the error by correlated noise
    slow_smallest_rise: float = 1.04  # minimum ratio of a slow rise to the lowest mean
    slow_critical_rise: float = 1.5  # ratio from which a slow rise is critical
    kept: float = 0.05  # share of the start below which a rise is INFO: nearly all progress is kept
    calm_steps: int = 64  # number of steps without a high loss that end the finding

    kind = "divergence"
    instability = Instability.HARMFUL
    noun = "a divergence"
    plural = "divergences"
    symptom = Symptom.RISING
    order = 40
    quantities = ("loss", "learning_rate", "loss_weight")
    compared = ("loss",)
    severities = (Severity.INFO, Severity.WARNING, Severity.CRITICAL)
    by_sensitivity: ClassVar[Mapping[str, Moves]] = {
        "threshold": "times",
        "threshold_of_differences": "times",
        "smallest_rise": "power",
        "slow_threshold": "times",
        "slow_smallest_rise": "power",
    }
    remedies = (Remedy(Action.RESTART_BEFORE_STEP), LOWER_RATE_2_TO_5, Remedy(Action.LENGTHEN_WARM_UP), CLIP_GRADIENTS)
    state_type = DivergenceState

    def after_rollback(self, state: DivergenceState) -> DivergenceState:
        """Keep the learning rates and the weights of terms."""
        return DivergenceState(restart=state.restart.after_rollback(), weight=state.weight)

    def step(self, state: DivergenceState, point: Point) -> tuple[DivergenceState, Finding | None]:
        return state, self._look(state, point)

    def _look(self, state: DivergenceState, point: Point) -> Finding | None:
        if not point.finite:
            return None
        if point.quantity == "loss_weight":
            state.weight.see(point.value, point.step)
            return None
        if point.quantity != "loss":
            state.restart.see(point.value, point.step)
            return None
        state.begun.take(point.value)
        state.signed = state.signed or point.value < 0
        if not point.has_level:
            by_ratio = point.reason is NoLevel.ADVERSARIAL and point.logarithmic and not state.signed
            by_noise = by_ratio or point.reason is NoLevel.SIGNED
            if not by_noise or abs(point.value) >= self._limit(state)[1]:
                return self._without_level(state, point)
        if state.restart.excuses(point.step) or self._is_reweighted(state, point):
            state.high, state.slow, state.risen_from = 0, SlowRise(judged=state.slow.judged), None
            return None
        logarithmic = point.logarithmic and not state.signed
        threshold = self.threshold if logarithmic else self.threshold_of_differences
        judged = self._against_first_baseline(state, point) if logarithmic and point.has_level else point
        excess = self._excess(judged, threshold)
        high = excess >= 1 and state.begun.matters(point.value, judged.center)
        self._count(state, high, excess)
        if high and state.baseline is None and point.scale:
            state.baseline, state.baseline_age = (point.center, point.scale), 0
        event = None
        if high and state.high.bit_count() >= self.high_steps:
            event = self._lasting_jump(state, judged, threshold)
        elif not high and state.episode_filter.reported and state.risen_from is None:
            state.episode_filter.note_calm(self.calm_steps)
        if state.onset is not None and not state.episode_filter.reported:
            state.onset = None
        if not logarithmic or not point.has_level:
            if state.slow.means:
                state.slow, state.risen_from = SlowRise(), None
        elif point.scale and state.slow.take(math.log(min(point.value, 1e150)), point.z, point.scale):
            slow_rise = self._slow_rise(state, point)
            event = event or slow_rise
        return event

    def _is_reweighted(self, state: DivergenceState, point: Point) -> bool:
        """Whether a schedule has just raised the weight of a term, by as much as the loss is above its baseline."""
        growth = state.weight.growth(point.step)
        if growth <= 1 or point.value >= HIGHEST_RISE * max(map(abs, state.begun.first), default=0.0):
            return False
        if state.signed or not point.logarithmic or not point.scale or growth == math.inf:
            return True
        return math.log(point.value / point.center / growth) < self.threshold * point.scale

    def _against_first_baseline(self, state: DivergenceState, point: Point) -> Point:
        """Return the point relative to the baseline before the first high loss, where that makes it higher.

        Early in a training a dozen high losses are a quarter of the baseline: its noise becomes as wide as they are
        high, and the twelfth would not count.
        """
        state.baseline_age += 1
        if state.baseline_age >= self.of_steps or state.onset is not None:
            state.baseline = None
        if state.baseline is None or point.value <= 0:
            return point
        center, scale = state.baseline
        z = math.log(point.value / center) / scale
        return point._replace(z=z, center=center, scale=scale) if z > point.z else point

    def _count(self, state: DivergenceState, high: bool, excess: float) -> None:
        state.high = ((state.high << 1) | bool(high)) & ((1 << self.of_steps) - 1)
        if high:
            state.excesses.append(excess)
            while len(state.excesses) > state.high.bit_count():
                state.excesses.popleft()

    def _excess(self, point: Point, threshold: float) -> float:
        """Return the largest factor on all thresholds that sensitivity moves with which the loss is still high."""
        excess, center = point.z / threshold, point.center
        if not point.logarithmic:
            return excess
        if not point.has_level:
            return excess if point.value >= center * self.smallest_rise_adversarial else 0.0
        if not excess >= 1 or self.smallest_rise <= 1 or center <= 0:
            return excess
        return min(excess, math.log(point.value / center) / math.log(self.smallest_rise))

    def _without_level(self, state: DivergenceState, point: Point) -> Finding | None:
        """Compare the absolute loss with the first losses."""
        state.slow, state.risen_from = SlowRise(judged=state.slow.judged), None
        size, limit = self._limit(state)
        high = abs(point.value) >= limit
        self._count(state, high, abs(point.value) / limit if limit else 1.0)
        if not high and state.episode_filter.reported:
            state.episode_filter.note_calm(self.calm_steps)
        count = state.high.bit_count()
        if not high or count < self.high_steps or not state.episode_filter.report(Severity.CRITICAL):
            return None
        first_high = point.step - state.high.bit_length() + 1
        facts = SizeFacts(point.value, size, state.begun.count, count, self.of_steps, limit, first_high)
        return self.finding(point, Severity.CRITICAL, facts)

    def _limit(self, state: DivergenceState) -> tuple[float, float]:
        """Return the size of the first losses, and the largest normal size of a loss without a level."""
        first = state.begun.first
        size = median(map(abs, first)) if len(first) == state.begun.count else math.inf
        return size, max(self.least_size_without_level, self.smallest_rise_without_level * size)

    def _lasting_jump(self, state: DivergenceState, point: Point, threshold: float) -> Finding | None:
        count, first_high = state.high.bit_count(), point.step - state.high.bit_length() + 1
        exceeds = sorted(state.excesses)[-self.high_steps]
        facts = DivergenceFacts(
            point.value, point.center, point.z, threshold, count, self.of_steps, first_high, state.onset, exceeds
        )
        severity = Severity.INFO if self._costs_little(state, point, point.value) else self.severity_of(facts)
        if not state.episode_filter.report(severity):
            return None
        state.onset = point.step - self.of_steps if state.onset is None else state.onset
        return self.finding(point, severity, facts)

    def _costs_little(self, state: DivergenceState, point: Point, loss: float) -> bool:
        return point.has_level and not state.signed and loss < self.kept * start_level(state.begun.first)

    def _slow_rise(self, state: DivergenceState, point: Point) -> Finding | None:
        """Judge the newest mean, every 8 steps."""
        mean, errors, limit = state.slow.means[-1], None, None
        if not state.begun.matters(math.exp(mean)):
            return None
        if state.risen_from is None:
            rise = state.slow.rise()
            if rise < math.log(self.slow_smallest_rise) or rise < CLIFF_RETURN * state.slow.after_cliff():
                return None
            error, correlation = state.slow.error(point.scale)
            limit = self.slow_threshold + self.slow_per_correlation * max(0.0, math.log2(correlation) - 0.4)
            limit += self.slow_per_longer_run * max(0.0, math.log2(state.slow.judged / 64))
            if rise < limit * error or not state.begun.matters(math.exp(mean), math.exp(mean - rise), point.scale):
                return None
            state.risen_from, errors = mean - rise, rise / error
        else:
            rise, smallest = mean - state.risen_from, math.log(self.slow_smallest_rise) / 2
            if min(rise, state.slow.above_lowest()) < smallest:  # it is back, or the higher level has become normal
                state.risen_from = None
                return None
            if rise < math.log(self.slow_critical_rise):
                return None
        now, then = math.exp(mean), math.exp(mean - rise)
        exceeds = rises_beyond(now, then, self.smallest_rise)
        if errors is not None and limit is not None:
            exceeds = times_beyond(errors, limit)
        share = math.expm1(min(rise, 700.0))  # expm1 overflows above 709
        late = state.slow.late_share(rise)
        facts = SlowRiseFacts(now, then, SLOW_STEPS, share, errors, limit, exceeds, late)
        worst = Severity.CRITICAL if rise >= math.log(self.slow_critical_rise) else Severity.WARNING
        severity = Severity.INFO if self._costs_little(state, point, now) else self.severity_of(facts, worst)
        return self.finding(point, severity, facts) if state.episode_filter.report(severity) else None


@dataclass(frozen=True, slots=True)
class AboveMeanFacts(Facts):
    """A loss that is high by the classic rule: above a multiple of the mean of the values before."""

    kind = "divergence_classic"
    metrics = ("loss", "mean", "steps")

    loss: float  # The loss, in its unit
    mean: float  # Mean of the values before, in the unit of the loss
    values: int  # Number of these values
    steps: int  # Number of high losses in a row
    threshold: float  # From how many times the mean on a loss is high

    def sentence(self, step: int, unit: str = "step", /) -> str:
        return (
            f"loss {self.loss:.4g} at {unit} {step}; above {self.threshold:g} times the mean of the {self.values} "
            f"values before ({self.mean:.4g}) for {self.steps} {unit}s."
        )


@dataclass(frozen=True, slots=True)
class DivergenceClassic(ClassicDetector):
    """The loss is {divergence_threshold} times the mean of its last {window} values, {consecutive_steps} times in a
    row.

    What it sees: {consecutive_steps} losses in a row above {divergence_threshold} times the mean of the {window} values
    before each, once there are {least_values}. A run of such losses is one finding.

    Why it matters: a diverging run rarely recovers by itself, and every further step is lost.

    What to try: restart from a checkpoint before the divergence; lower the learning rate by a factor of 2 to 5;
    lengthen the warm-up; clip gradients.

    When it is wrong: losses at or below zero are not judged. A slow divergence, or one below that ratio, is missed;
    most are.

    Reference: llm-foundry, KillLossSpike
    """

    divergence_threshold: float = 2.0  # multiple of the mean above which a loss is too high
    consecutive_steps: int = 3  # number of high losses in a row that make a divergence

    kind = "divergence"
    order = 400
    quantities = ("loss",)
    in_a_row = "consecutive_steps"
    severities = (Severity.CRITICAL,)
    remedies = Divergence.remedies

    def judge(self, state: ClassicWindow, value: float) -> Facts | None:
        count, times = len(state.values), self.divergence_threshold
        mean = state.mean() if count >= self.least_values else 0.0
        return AboveMeanFacts(value, mean, count, self.consecutive_steps, times) if value > times * mean > 0 else None
