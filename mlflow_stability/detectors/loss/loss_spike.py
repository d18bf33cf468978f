"""Says when the loss leaps up.

Says when the loss lies three deviations above its last 100 values: the rule in general use.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from mlflow_stability.detectors.engine.adversarial import RISE
from mlflow_stability.detectors.engine.classic_window import ClassicWindow
from mlflow_stability.detectors.engine.debounce import EpisodeFilter
from mlflow_stability.detectors.engine.detector import WHOLE, Detector, Point
from mlflow_stability.detectors.engine.finding import finding
from mlflow_stability.detectors.engine.finding_type import Moves
from mlflow_stability.detectors.engine.learning_rate_restart import RateRestart
from mlflow_stability.detectors.engine.loss_fall import Beginning
from mlflow_stability.vocabulary.result.event import Event, Severity


@dataclass(slots=True)
class Spikes:
    """What has been seen so far."""

    gate: EpisodeFilter = field(default_factory=EpisodeFilter)
    restart: RateRestart = field(default_factory=RateRestart)
    begun: Beginning = field(default_factory=Beginning)
    waiting: Point | None = None
    """A loss that is a spike if the gradient of its step stands out too."""
    gradient_step: int = -1
    gradient_z: float = 0.0


@dataclass(frozen=True, slots=True)
class LossSpike(Detector):
    """The loss leapt up from its own level.

    What it sees: a loss at least 8 widths of its own noise above its level, or 6 where the gradient norm of the same
    step stands out by 6 as well; and at least 5 % above it. Noise with a heavy tail raises both limits to what it
    reaches once in 100,000 steps. Below a hundredth of where the loss began nothing is a spike; nor below a fifth, once
    it is below a twentieth and leaps about by half of itself. Where several trainings take turns, as the halves of a
    GAN do, only losses 10 times above their level count. One finding until the loss has been calm for 8 steps.

    Why it matters: most spikes pass, but a loss that leaps often, or that does not come back, has usually taken a step
    that was too large; what was learnt before it can be lost.

    What to try: lower the learning rate 2-5 times; clip the gradients at 1.0; look at the batch; let the training be
    set back to before it.

    When it is wrong: a batch of another kind on purpose (another task, longer sequences); a schedule that switches a
    term of the loss on. The 200 steps after a restart of the learning rate are left out.

    Reference: OLMo 2 (arXiv:2501.00656, 3.2); PaLM (arXiv:2204.02311, 5.1)
    """

    threshold: float = 8.0
    """The least z of a loss alone."""
    threshold_with_gradient: float = 6.0
    """The least z of both, where loss and gradient norm stand out in the same step."""
    threshold_of_differences: float = 12.0
    """The least z of a loss alone, where the loss can be negative."""
    share_of_tail: float = 1.0
    """And the least z as a share of what the signal's own noise reaches once in 100,000 steps; 0: do not ask."""
    smallest_rise: float = 1.05
    """The least value as a multiple of the level; not asked of a loss that can be negative."""
    smallest_rise_of_players: float = RISE
    """The same where several trainings take turns."""
    critical_rise: float = 100.0
    """From which multiple of the level on a spike is critical."""
    calm_below: float = 4.0
    """Below this z a step counts as calm."""
    calm_steps: int = 8
    """After how many calm steps in a row the trouble is over."""

    kind = "loss_spike"
    noun = "a loss spike"
    plural = "loss spikes"
    order = 30
    quantities = ("loss", "grad_norm", "learning_rate")
    compared = ("loss", "grad_norm")
    places = WHOLE
    severities = (Severity.WARNING, Severity.CRITICAL)
    by_sensitivity: ClassVar[Mapping[str, Moves]] = {
        "threshold": "times",
        "threshold_with_gradient": "times",
        "threshold_of_differences": "times",
        "share_of_tail": "times",
        "smallest_rise": "power",
    }
    remedies = (
        "Lower the learning rate 2-5 times.",
        "Clip gradients at 1.0.",
        "Look at the batch of this step.",
        "Let the training be set back to before the spike.",
    )
    state_type = Spikes

    def step(self, state: Spikes, point: Point) -> tuple[Spikes, Event | None]:
        """Look at the next loss, gradient norm or learning rate."""
        if point.quantity == "learning_rate":
            state.restart.see(point.value, point.step)
            return state, None
        z = point.z
        if z < self.calm_below:
            if point.quantity == "loss" and point.finite:
                state.begun.take(point.value)
            if state.gate.said and point.finite and point.quantity == "loss":
                state.gate.quiet(self.calm_steps)
            return state, None
        if point.quantity != "loss":
            return state, self._with_gradient(state, point)
        state.waiting, state.gate.calm = None, 0
        if state.restart.excuses(point.step):
            return state, None
        smallest = self.smallest_rise_of_players if point.players else self.smallest_rise
        if (point.logarithmic or point.players) and point.value < abs(point.center) * smallest:
            return state, None
        if not state.begun.matters(point.value, point.center, point.scale if point.logarithmic else 0.0):
            return state, None
        if z >= self._alone(point):
            return state, self._spike(state, point, None)
        if z >= self._together(point):
            if state.gradient_step == point.step:
                return state, self._spike(state, point, state.gradient_z)
            state.waiting = point
        return state, None

    def _with_gradient(self, state: Spikes, point: Point) -> Event | None:
        if point.z < self._together(point):
            return None
        state.gradient_step, state.gradient_z = point.step, point.z
        waiting, state.waiting = state.waiting, None
        if waiting is not None and waiting.step == point.step:
            return self._spike(state, waiting, point.z)
        return None

    def _alone(self, point: Point) -> float:
        return max(
            self.threshold if point.logarithmic else self.threshold_of_differences, self.share_of_tail * point.tail
        )

    def _together(self, point: Point) -> float:
        return max(self.threshold_with_gradient, self._alone(point) * self.threshold_with_gradient / self.threshold)

    def _spike(self, state: Spikes, point: Point, gradient_z: float | None) -> Event | None:
        huge = point.logarithmic and point.value >= point.center * self.critical_rise
        severity = Severity.CRITICAL if huge else Severity.WARNING
        if not state.gate.speaks(severity):
            return None
        evidence = {"loss": point.value, "level": point.center, "z": point.z}
        limit = self._alone(point)
        also = ""
        if gradient_z is not None:
            evidence["grad_norm_z"] = gradient_z
            limit, also = self._together(point), f", and the gradient norm at {gradient_z:.1f}"
        evidence["limit"] = limit
        return finding(
            self,
            point,
            severity,
            f"loss is {point.value:.4g} at step {point.step}, from a level of {point.center:.4g}: "
            f"{point.z:.1f} widths of its noise{also}; the limit is {limit:.1f}.",
            evidence,
        )


@dataclass(frozen=True, slots=True)
class LossSpikeClassic(Detector):
    """The loss lies three deviations above its last 100 values.

    What it sees: a loss above the mean plus 3 standard deviations of the 100 before it, from the 21st value on. Losses
    that are too high in a row are one finding.

    Why it matters: most spikes pass, but a loss that leaps often has usually taken steps that were too large.

    What to try: lower the learning rate 2-5 times; clip the gradients at 1.0; look at the batch.

    When it is wrong: often: plain noise is that high once in 700 steps, and each spike widens the deviation that the
    next one is measured by. The rule without `:classic` was made for that.

    Reference: Shewhart, Economic control of quality of manufactured product (1931)
    """

    deviations: float = 3.0
    """How many standard deviations above the mean are too high."""
    window: int = 100
    """How many values the mean is of."""
    least_values: int = 20
    """From how many values on anything is judged."""

    kind = "loss_spike"
    order = 390
    on_request = True
    rule = "classic"
    quantities = ("loss",)
    remedies = (
        "Lower the learning rate 2-5 times.",
        "Clip gradients at 1.0.",
        "Look at the batch of this step.",
    )
    state_type = ClassicWindow

    def step(self, state: ClassicWindow, point: Point) -> tuple[ClassicWindow, Event | None]:
        """Look at the next loss."""
        if not point.finite:
            return state, None
        event = None
        high = False
        if len(state.values) >= self.least_values:
            mean = state.mean()
            limit = mean + self.deviations * state.deviation(mean)
            high = point.value > limit
            if high and not state.run:
                event = finding(
                    self,
                    point,
                    Severity.WARNING,
                    f"loss is {point.value:.4g} at step {point.step}; the mean of the {len(state.values)} before is "
                    f"{mean:.4g}, the limit {limit:.4g}.",
                    {"loss": point.value, "mean": mean, "limit": limit},
                )
        state.run = state.run + 1 if high else 0
        state.take(point.value, self.window)
        return state, event
