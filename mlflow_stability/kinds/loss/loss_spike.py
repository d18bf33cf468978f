"""Detect loss spikes and whether they have a consequence, and the classic rule for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

from mlflow_stability.detectors.detector import WHOLE, Detector, Point
from mlflow_stability.detectors.episodes import Aftermath, EpisodeFilter, RecentOutliers
from mlflow_stability.detectors.finding_type import Instability, Moves, Symptom
from mlflow_stability.detectors.learning_rate_restart import RateRestart
from mlflow_stability.detectors.loss_fall import FirstValues, start_level
from mlflow_stability.detectors.loss_level import RISE
from mlflow_stability.detectors.streak import ClassicDetector, ClassicWindow
from mlflow_stability.vocabulary.facts import Facts, LossRiseFacts
from mlflow_stability.vocabulary.loss_level import NoLevel
from mlflow_stability.vocabulary.result import CLIP_GRADIENTS, LOWER_RATE_2_TO_5, Action, Finding, Remedy, Severity
from mlflow_stability.vocabulary.text.phrases import sigmas


@dataclass(slots=True)
class LossSpikeState:
    episode_filter: EpisodeFilter = field(default_factory=EpisodeFilter)
    restart: RateRestart = field(default_factory=RateRestart)
    begun: FirstValues = field(default_factory=FirstValues)
    waiting: Point | None = None  # a loss that is a spike if the gradient norm of its step is an outlier, too
    gradient_step: int = -1
    gradient_z: float = 0.0
    returns: RecentOutliers = field(default_factory=RecentOutliers)
    watch: Aftermath | None = None  # the losses since the last spike that is INFO
    spike: SpikeFacts | None = None  # the facts of that spike


@dataclass(frozen=True, slots=True)
class SpikeFacts(LossRiseFacts):
    kind = "loss_spike"
    metrics: ClassVar = {
        "loss": "value",
        "level": "baseline",
        "z": "sigmas",
        "grad_norm_z": "gradient_sigmas",
        "limit": "threshold",
        "since": "found_first",
    }

    sigmas: float  # How far above its baseline it is, in σ of its noise
    threshold: float  # From how many σ on it is a spike
    gradient_sigmas: float | None = None  # The gradient norm above its baseline, in σ; None where it was not needed
    spikes: int | None = None  # Number of spikes up to this one in a short time; None where spikes are rare
    spikes_since: int | None = None  # The step of the first of them
    high_steps: int | None = None  # Number of high losses from it on, where that made it a warning
    watched_steps: int | None = None  # Number of losses among which they are counted, itself included
    value_after: float | None = None  # Median of losses after it, in the unit of the loss, where that made it a warning
    baseline_after: float | None = None  # Median of their baselines, in the unit of the loss
    found_first: int | None = None  # The step of the spike, where what came after it made it a warning

    @property
    def exceeds(self) -> float:
        return self.sigmas / self.threshold

    def sentence(self, step: int, unit: str = "step", /) -> str:
        at = step if self.found_first is None else self.found_first
        above = f"{sigmas(self.sigmas)} above its baseline of {self.baseline:.4g} (threshold {self.threshold:.3g}σ)"
        parts = [f"loss {self.value:.4g} at {unit} {at}, {above}"]
        if self.gradient_sigmas is not None:
            parts.append(f"gradient norm {sigmas(self.gradient_sigmas)} above its baseline")
        if self.spikes is not None:
            parts.append(f"number {self.spikes} since {unit} {self.spikes_since}")
        if self.high_steps is not None:
            parts.append(f"high in {self.high_steps} of {self.watched_steps} {unit}s")
        elif self.value_after is not None and self.watched_steps is not None:
            parts.append(
                f"the next {self.watched_steps - 1} losses are near {self.value_after:.4g}, above their baseline of "
                f"{self.baseline_after:.4g}"
            )
        return f"{'; '.join(parts)}."


@dataclass(frozen=True, slots=True)
class AboveMeanSpikeFacts(Facts):
    """A loss that is high by the classic rule: some standard deviations above the mean of the values before."""

    kind = "loss_spike_classic"
    metrics = ("loss", "mean", "limit")

    loss: float  # The loss, in its unit
    mean: float  # Mean of the values before, in the unit of the loss
    limit: float  # Above which loss it is a spike, in the unit of the loss
    values: int  # Number of the values before

    @property
    def exceeds(self) -> float | None:
        """By how many times it exceeds its limit; None for losses below zero."""
        return self.loss / self.limit if self.limit > 0 else None

    def sentence(self, step: int, unit: str = "step", /) -> str:
        return (
            f"loss {self.loss:.4g} at {unit} {step}, above the threshold of {self.limit:.4g} (mean of the "
            f"{self.values} values before: {self.mean:.4g})."
        )


@dataclass(frozen=True, slots=True)
class LossSpike(Detector):
    """The loss jumped above its baseline.

    What it sees: a loss at least {threshold}σ and {smallest_rise:rise} above its baseline; {threshold_with_gradient}σ
    are enough where the gradient norm of the same step is also {threshold_with_gradient}σ above its baseline. Losses
    that can be negative count from {threshold_of_differences}σ on. Heavy-tailed noise raises both thresholds to what
    that noise reaches once in {baseline.TAIL:one_in} steps. Losses below {loss_fall.LEARNT:percent} of the first loss
    never count. Once a very noisy loss is below {loss_fall.NOISY_BELOW:percent} of its start, rises to less than
    {loss_fall.NOISY_RISE:percent} of it do not count. In adversarial training, such as a GAN, only losses at
    {smallest_rise_adversarial} times their baseline count; of other losses whose level does not measure progress, only
    those whose sign keeps changing. A single high loss is INFO. It becomes a warning when {lasting_steps} of the
    {watched_steps} steps from it on are high ({calm_below}σ, or half of a raised threshold), when the median of the
    {watched_steps} steps after it is {worse_sigmas}σ and {worse_rise:rise} above the baseline, or when it is spike
    number {returns} within {returns_within} steps. Below {kept:percent} of the start of the loss it stays INFO. A loss
    at {critical_rise} times its baseline is critical at once. The finding ends after {calm_steps} steps below
    {calm_below}σ.

    Why it matters: most spikes pass. Frequent spikes, or one that does not recover, usually mean that a step was too
    large; what was learnt before can be lost.

    What to try: lower the learning rate by a factor of 2 to 5; clip gradients; inspect the batch; enable
    rollback=True.

    When it is wrong: a different batch on purpose (another task, longer sequences), or a schedule that switches on a
    loss term. The {learning_rate_restart.RESTART_STEPS} steps after a learning-rate restart are ignored.

    Reference: OLMo 2 (arXiv:2501.00656, 3.2); PaLM (arXiv:2204.02311, 5.1)
    """

    threshold: float = 8.0  # threshold of the loss alone, in σ above its baseline
    threshold_with_gradient: float = 6.0  # threshold in σ where loss and gradient norm both exceed it in the same step
    threshold_of_differences: float = 12.0  # threshold of the loss alone, in σ, where the loss can be negative
    share_of_tail: float = 1.0
    """Factor on the σ that the loss's own noise reaches once in {baseline.TAIL:one_in} steps; the higher threshold
    counts. 0 turns this off."""
    smallest_rise: float = 1.05  # minimum ratio of the loss to its baseline; unused where the loss can be negative
    smallest_rise_adversarial: float = RISE  # minimum ratio in adversarial training, such as a GAN
    critical_rise: float = 100.0  # ratio to the baseline from which a spike is critical
    calm_below: float = 4.0  # a step below this σ counts as normal
    calm_steps: int = 8  # number of normal steps in a row that end the finding
    watched_steps: int = 16  # number of steps after a spike that show whether it has a consequence
    lasting_steps: int = 3
    """Number of high losses among them, the first one included, that make a spike a warning. High are at least
    `calm_below`, half of the threshold of the loss alone, and `smallest_rise`."""
    worse_sigmas: float = 2.0  # minimum median of the losses after a spike, in σ, for a spike that made the loss worse
    worse_rise: float = 1.1  # minimum ratio of that median to the baseline; unused where the loss can be negative
    kept: float = 0.05  # share of the start below which a spike stays INFO: nearly all progress is kept
    returns: int = 3
    """Number of spikes within `returns_within` steps that makes each further one a warning: what the noise reaches once
    in {baseline.TAIL:one_in} steps does not come so often."""
    returns_within: int = 1000  # number of steps over which they are counted
    threshold_alone: bool = False
    """Judge by `threshold` alone: neither the noise's tail, nor a minimum ratio, nor a learning-rate restart excuses a
    loss, a gradient norm lowers no threshold, and a single high loss is a warning. `calm_steps` is 1 then, and
    `calm_below` at most `threshold`."""

    kind = "loss_spike"
    instability = Instability.HARMFUL
    noun = "a loss spike"
    plural = "loss spikes"
    symptom = Symptom.RISING
    order = 30
    quantities = ("loss", "grad_norm", "learning_rate")
    compared = ("loss", "grad_norm")
    places = WHOLE
    severities = (Severity.INFO, Severity.WARNING, Severity.CRITICAL)
    by_sensitivity: ClassVar[Mapping[str, Moves]] = {
        "threshold": "times",
        "threshold_with_gradient": "times",
        "threshold_of_differences": "times",
        "share_of_tail": "times",
        "smallest_rise": "power",
    }
    remedies = (LOWER_RATE_2_TO_5, CLIP_GRADIENTS, Remedy(Action.INSPECT_BATCH), Remedy(Action.ENABLE_ROLLBACK))
    state_type = LossSpikeState

    def __post_init__(self) -> None:
        """Let each excursion above a threshold that decides alone be a finding."""
        if self.threshold_alone:
            object.__setattr__(self, "calm_below", min(self.calm_below, self.threshold))
            object.__setattr__(self, "calm_steps", 1)

    def after_rollback(self, state: LossSpikeState) -> LossSpikeState:
        """Keep the learning rates."""
        return LossSpikeState(restart=state.restart.after_rollback())

    def step(self, state: LossSpikeState, point: Point) -> tuple[LossSpikeState, Finding | None]:
        if point.quantity == "learning_rate":
            state.restart.see(point.value, point.step)
            return state, None
        worse = None
        if state.watch is not None and state.spike is not None and point.quantity == "loss" and point.finite:
            worse = self._consequence(state, state.watch, state.spike, point)
        event = self._look(state, point)
        return state, worse if event is None or (worse is not None and worse.severity > event.severity) else event

    def _look(self, state: LossSpikeState, point: Point) -> Finding | None:
        if point.z < self.calm_below:
            if point.quantity == "loss" and point.finite:
                state.begun.take(point.value)
                if state.episode_filter.reported:
                    state.episode_filter.note_calm(self.calm_steps)
            return None
        return self._judge_loss(state, point) if point.quantity == "loss" else self._judge_gradient(state, point)

    def _judge_loss(self, state: LossSpikeState, point: Point) -> Finding | None:
        state.waiting, state.episode_filter.calm = None, 0
        adversarial = point.reason is NoLevel.ADVERSARIAL
        if not (point.has_level or (adversarial and point.logarithmic) or point.reason is NoLevel.SIGNED):
            return None
        if self.threshold_alone:
            return self._spike(state, point, None) if point.z >= self.threshold else None
        if state.restart.excuses(point.step) or not self._rises_enough(point):
            return None
        if not state.begun.matters(point.value, point.center, point.scale if point.logarithmic else 0.0):
            return None
        if point.z >= self._limit(point):
            return self._spike(state, point, None)
        if point.z >= self._limit_with_gradient(point):
            if state.gradient_step == point.step:
                return self._spike(state, point, state.gradient_z)
            state.waiting = point
        return None

    def _judge_gradient(self, state: LossSpikeState, point: Point) -> Finding | None:
        if self.threshold_alone or point.z < self._limit_with_gradient(point):
            return None
        state.gradient_step, state.gradient_z = point.step, point.z
        waiting, state.waiting = state.waiting, None
        if waiting is not None and waiting.step == point.step:
            return self._spike(state, waiting, point.z)
        return None

    def _rises_enough(self, point: Point) -> bool:
        """Return whether the loss has the smallest ratio to its baseline, or is judged by differences."""
        adversarial = point.reason is NoLevel.ADVERSARIAL
        smallest = self.smallest_rise_adversarial if adversarial else self.smallest_rise
        return not (point.logarithmic or adversarial) or point.value >= abs(point.center) * smallest

    def _limit(self, point: Point) -> float:
        if self.threshold_alone:
            return self.threshold
        compares_ratios = point.logarithmic and point.reason is not NoLevel.SIGNED
        threshold = self.threshold if compares_ratios else self.threshold_of_differences
        return max(threshold, self.share_of_tail * point.tail)

    def _limit_with_gradient(self, point: Point) -> float:
        return max(self.threshold_with_gradient, self._limit(point) * self.threshold_with_gradient / self.threshold)

    def _spike(self, state: LossSpikeState, point: Point, gradient_z: float | None) -> Finding | None:
        limit = self._limit(point) if gradient_z is None else self._limit_with_gradient(point)
        facts = SpikeFacts(point.value, point.center, point.z, limit, gradient_sigmas=gradient_z)
        often = None
        if not state.episode_filter.reported:
            often = state.returns.take(point.step, self.returns, self.returns_within)
        huge = point.logarithmic and point.value >= point.center * self.critical_rise
        severity = Severity.WARNING if often or self.threshold_alone else Severity.INFO
        severity = self.severity_of(facts, Severity.CRITICAL if huge else severity)
        if not state.episode_filter.report(severity):
            return None
        if severity is Severity.INFO:
            state.watch, state.spike = Aftermath(point.step), facts
        if often is not None:
            facts = replace(facts, spikes=often.number, spikes_since=often.since)
        return self.finding(point, severity, facts)

    def _consequence(self, state: LossSpikeState, watch: Aftermath, spike: SpikeFacts, point: Point) -> Finding | None:
        """Judge at a loss after a spike whether the spike has become a warning."""
        high = point.z >= max(self.calm_below, self._limit(point) / 2) and self._rises_enough(point)
        watch.take(point, high=high)
        worse: SpikeFacts | None = None
        kept = point.has_level and 0 <= spike.value < self.kept * start_level(state.begun.first)
        if not kept and watch.high >= self.lasting_steps:
            worse = replace(spike, high_steps=watch.high)
        elif not kept and watch.steps >= self.watched_steps:
            worse = self._raised(state, watch, spike, point)
        if worse or watch.steps >= self.watched_steps or state.restart.excuses(point.step):
            state.watch = None
        if not worse or not state.episode_filter.report(Severity.WARNING):
            return None
        worse = replace(worse, found_first=watch.step, watched_steps=watch.steps + 1)
        return self.finding(point, Severity.WARNING, worse)

    def _raised(self, state: LossSpikeState, watch: Aftermath, spike: SpikeFacts, point: Point) -> SpikeFacts | None:
        """Return the facts of a spike after which the losses are above their baseline, else None."""
        value, level, z = watch.medians()
        if z < self.worse_sigmas or not state.begun.matters(value):
            return None
        if point.logarithmic and (level <= 0 or value < level * self.worse_rise):
            return None
        return replace(spike, value_after=value, baseline_after=level)


@dataclass(frozen=True, slots=True)
class LossSpikeClassic(ClassicDetector):
    """The loss is {deviations} standard deviations above the mean of its last {window} values.

    What it sees: a loss above the mean plus {deviations} standard deviations of the {window} values before it, once
    there are {least_values}. High losses in a row are one finding.

    Why it matters: most spikes pass. Frequent spikes usually mean that the steps are too large.

    What to try: lower the learning rate by a factor of 2 to 5; clip gradients; inspect the batch.

    When it is wrong: often. Normal noise is that high once in 700 steps, and each spike widens the deviation for the
    next one. `loss_spike` without `:classic` avoids both.

    Reference: Shewhart, Economic control of quality of manufactured product (1931)
    """

    deviations: float = 3.0  # threshold in standard deviations above the mean

    kind = "loss_spike"
    order = 390
    quantities = ("loss",)
    remedies = (LOWER_RATE_2_TO_5, CLIP_GRADIENTS, Remedy(Action.INSPECT_BATCH))

    def judge(self, state: ClassicWindow, value: float) -> Facts | None:
        if len(state.values) < self.least_values:
            return None
        mean = state.mean()
        limit = mean + self.deviations * state.deviation(mean)
        return AboveMeanSpikeFacts(value, mean, limit, len(state.values)) if value > limit else None
