"""Detect updates that are too large or too small, weights that jump, and gradients that Adam does not expect."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import ClassVar

from mlflow_stability.detectors.detector import WHOLE, Point
from mlflow_stability.detectors.finding_type import Instability, Moves, Symptom
from mlflow_stability.detectors.progress import Progress
from mlflow_stability.detectors.streak import (
    Streak,
    StreakByPlace,
    StreakDetector,
    StreakWithLoss,
    StreakWithLossDetector,
)
from mlflow_stability.vocabulary.facts import Facts, FollowedFacts, LimitFacts, RiseFacts, TextEnum
from mlflow_stability.vocabulary.measured.signal import is_whole_model
from mlflow_stability.vocabulary.result import (
    CLIP_GRADIENTS,
    LOWER_BETA2,
    LOWER_RATE,
    LOWER_RATE_5_TO_10,
    RAISE_RATE_5_TO_10,
    Action,
    Remedy,
    Severity,
)


class Phase(TextEnum):
    """The phase of a training, as its learning rates show it."""

    WARM_UP = "in the warm-up"
    AFTER_WARM_UP = "after the warm-up"
    DECAY = "in the decay of the learning rate"


@dataclass(frozen=True, slots=True)
class UpdateRatioFacts(FollowedFacts, LimitFacts):
    """Updates that are too large or too small, as a share of the weight norm."""

    metrics: ClassVar = {"update_ratio": "value", "limit": "threshold"}

    def statement(self, step: int, unit: str, /) -> str:
        where = "" if is_whole_model(self.place) else f" of {self.place}"
        limit = f"threshold {self.threshold:g}{self._why(step, unit)}"
        return f"update ratio{where} {self.value:.2g} at {unit} {step} ({limit})."

    def _why(self, step: int, unit: str) -> str:  # noqa: ARG002 - for those that depend on it
        """Return what the threshold depends on, after a space."""
        return ""


@dataclass(frozen=True, slots=True)
class LargeUpdateFacts(UpdateRatioFacts):
    kind = "update_ratio_high"

    phase: Phase  # The phase of the training, which sets the threshold

    def _why(self, step: int, unit: str) -> str:
        low, high = ("1e-3", "1e-2") if step <= 1000 else ("1e-4", "1e-3") if step <= 10_000 else ("1e-5", "1e-4")
        return f" {self.phase}; {low} to {high} is common at this {unit}"


@dataclass(frozen=True, slots=True)
class TinyUpdateFacts(UpdateRatioFacts):
    kind = "update_ratio_low"


@dataclass(slots=True)
class UpdateRatioHighState:
    whole: StreakByPlace = field(default_factory=StreakByPlace)
    layers: StreakByPlace = field(default_factory=StreakByPlace)
    first_steps: dict[str, int] = field(default_factory=dict)  # first step of each model; layers follow the main one
    rates: dict[str, float] = field(default_factory=dict)  # learning rate by parameter group
    highest: dict[str, float] = field(default_factory=dict)  # highest learning rate by group
    risen_at: dict[str, int] = field(default_factory=dict)  # step of the highest learning rate by group
    progress: Progress = field(default_factory=Progress)

    @property
    def is_found(self) -> bool:
        return self.whole.is_found or self.layers.is_found

    def reaches(self, place: str, needed: int, *, bad: bool) -> bool:
        """Count one more value; a layer is not found while the whole model is."""
        if is_whole_model(place):
            return self.whole.reaches(place, needed, bad=bad)
        return self.layers.reaches(place, needed, bad=bad) and not self.whole.is_found


@dataclass(frozen=True, slots=True)
class UpdateRatioHigh(StreakWithLossDetector):
    """The updates are large relative to the weights.

    What it sees: updates that are a large share of the weight norm, of the whole model in {rounds} measurements in a
    row, or of a layer in {rounds_of_layer}. The threshold is {highest} in the warm-up: in the first {warm_up} steps,
    and for {risen} steps after a rise of a learning rate. Then it is {highest_after_warm_up}, and {highest_in_decay} in
    the decay, once every learning rate is below {decay:percent} of its highest. The first {first_steps} steps of each
    model do not count. The finding ends when all are smaller. It is INFO while the loss falls, and a warning where the
    loss is above {progress.FALLEN:percent} of its start or at {progress.RISEN} times its lowest level.

    Why it matters: such a step overwrites much of what the weights hold. About 0.001 is healthy.

    What to try: lower the learning rate by a factor of 5 to 10; lengthen the warm-up.

    When it is wrong: the first steps of a training, and weights that start at zero. No finding in 117 healthy trainings
    of 39 kinds with layers measured every 100 steps. Measured every 10 steps, 3 findings, all in tables of rare rows
    under Adagrad. By phase, the largest ratios that last in 141 healthy trainings: 0.033 in the warm-up, 0.021 of a
    model and 0.031 of a layer after it, 0.003 in the decay.

    Reference: https://karpathy.github.io/2019/04/25/recipe/; You et al., LAMB (arXiv:1904.00962)
    """

    highest: float = 0.1  # ratio of update norm to weight norm above which it is high, in the warm-up
    highest_after_warm_up: float = 0.06  # the same after it: twice the largest that lasts in 141 healthy trainings
    warm_up: int = 100  # number of first steps that are warm-up whatever the learning rate is
    risen: int = 10  # number of steps for which a learning rate that has risen is in its warm-up
    highest_in_decay: float = 0.03  # The same in the decay. Of 141 healthy trainings none reaches it.
    decay: float = 0.5  # share of its highest below which a learning rate is in its decay
    rounds: int = 3  # number of measurements of the whole model in a row
    rounds_of_layer: int = 10  # number of measurements of a layer in a row
    first_steps: int = 10  # number of first steps that are ignored: weights that start near zero change much in them

    kind = "update_ratio_high"
    instability = Instability.HARMFUL
    noun = "large updates"
    question = "Are updates of a healthy size beside the weights?"
    check_by_hand = "Compute the norm of the update over the norm of the weights, by layer: about 0.001 is healthy."
    symptom = Symptom.LARGE_UPDATES
    order = 180
    quantities = ("loss", "learning_rate", "update_ratio")
    remedies = (LOWER_RATE_5_TO_10, Remedy(Action.LENGTHEN_WARM_UP))
    state_type = UpdateRatioHighState

    def takes(self, state: UpdateRatioHighState, point: Point) -> bool:
        if point.quantity == "learning_rate" and point.finite:
            state.rates[point.place] = point.value
            if point.place not in state.highest or point.value > state.highest[point.place]:
                state.highest[point.place], state.risen_at[point.place] = point.value, point.step
        if point.quantity != "update_ratio":
            return False
        return point.finite and point.step >= self._first_step(state, point) + self.first_steps

    def _first_step(self, state: UpdateRatioHighState, point: Point) -> int:
        return state.first_steps.setdefault(point.place if is_whole_model(point.place) else "", point.step)

    def needed(self, point: Point) -> int:
        return self.rounds if is_whole_model(point.place) else self.rounds_of_layer

    def facts(self, state: UpdateRatioHighState, point: Point) -> Facts | None:
        limit, phase = self._limit(state, point)
        if point.value <= limit:
            return None
        return LargeUpdateFacts(point.value, limit, phase, in_a_row=self.needed(point), place=point.place)

    def _limit(self, state: UpdateRatioHighState, point: Point) -> tuple[float, Phase]:
        rates, step = state.rates, point.step
        if rates and all(rate < self.decay * state.highest[place] for place, rate in rates.items()):
            return self.highest_in_decay, Phase.DECAY
        is_start = not rates or step < self._first_step(state, point) + self.warm_up
        if is_start or any(step <= risen_at + self.risen for risen_at in state.risen_at.values()):
            return self.highest, Phase.WARM_UP
        return self.highest_after_warm_up, Phase.AFTER_WARM_UP


@dataclass(slots=True)
class UpdateRatioLowState(StreakWithLoss):
    step: int = -1  # the step of the last learning rates
    time: float = 0.0  # their time; learning rates of another training at the same step come later
    rate: float = 0.0
    highest_rate: float = 0.0


@dataclass(frozen=True, slots=True)
class UpdateRatioLow(StreakWithLossDetector):
    """The updates are too small to change the weights.

    What it sees: updates below {lowest} of the weight norm, of the whole model or of a layer, in {rounds} measurements
    in a row. Only while the learning rate is at least {share_of_rate:percent} of its highest and the loss at least
    {loss_fall.LEARNT:percent} of its start. A layer that was not updated at all does not count. The finding ends when
    all are larger. It is INFO while the loss falls, and a warning where the loss is above {progress.FALLEN:percent} of
    its start or at {progress.RISEN} times its lowest level.

    Why it matters: such updates are lost to rounding in most number formats; in bf16 they change nothing.

    What to try: raise the learning rate by a factor of 5 to 10; keep the weights in fp32; look for frozen parameters.

    When it is wrong: the end of a schedule that goes to zero. No finding in 117 healthy trainings of 39 kinds (110,000
    measured values).

    Reference: Zamirai et al., Revisiting BFloat16 training (arXiv:2010.06192)
    """

    lowest: float = 1e-7  # ratio of update norm to weight norm below which it is low
    rounds: int = 5  # number of measurements in a row
    share_of_rate: float = 0.01  # share of the highest learning rate below which small updates are expected

    kind = "update_ratio_low"
    noun = "tiny updates"
    symptom = Symptom.TINY_UPDATES
    question = "Do the updates change the weights at all?"
    check_by_hand = (
        "Compare the weights before and after 100 steps; below a relative change of 1e-5 nothing is learned."
    )
    order = 190
    quantities = ("loss", "learning_rate", "update_ratio")
    in_a_row = "rounds"
    remedies = (RAISE_RATE_5_TO_10, Remedy(Action.KEEP_WEIGHTS_IN_FP32), Remedy(Action.LOOK_FOR_FROZEN_PARAMETERS))
    state_type = UpdateRatioLowState

    def takes(self, state: UpdateRatioLowState, point: Point) -> bool:
        if point.finite and point.quantity == "learning_rate":
            # The highest of the step's groups counts; two trainings at the same step differ in time.
            is_same = point.step == state.step and not point.time > state.time
            state.rate = max(state.rate, point.value) if is_same else point.value
            state.step, state.time, state.highest_rate = point.step, point.time, max(state.highest_rate, point.value)
            return False
        return point.finite and (point.value != 0.0 or is_whole_model(point.place))

    def facts(self, state: UpdateRatioLowState, point: Point) -> Facts | None:
        is_meant = state.rate < state.highest_rate * self.share_of_rate or (state.step >= 0 and state.rate == 0)
        if point.value >= self.lowest or is_meant or state.progress.losses.falls.learnt():
            return None
        return TinyUpdateFacts(point.value, self.lowest, in_a_row=self.rounds, place=point.place)


@dataclass(frozen=True, slots=True)
class WeightSpikeFacts(RiseFacts):
    kind = "weight_spike"
    metrics: ClassVar = {"param_norm": "value", "level": "baseline"}

    def sentence(self, step: int, unit: str = "step", /) -> str:
        owner = "" if is_whole_model(self.place) else f" of {self.place}"
        return (
            f"norm of the weights{owner} {self.value:.4g} at {unit} {step}, {self.value / self.baseline:.3g} times its "
            f"baseline of {self.baseline:.4g} (threshold {self.ratio:g} times)."
        )


@dataclass(slots=True)
class WeightSpikeState(StreakByPlace):
    last: dict[str, deque[float]] = field(default_factory=dict)  # the last norms of each place that were no spike


@dataclass(frozen=True, slots=True)
class WeightSpike(StreakDetector):
    """The weight norm jumped above its baseline.

    What it sees: a weight norm, of the whole model or of a layer, at {smallest_rise} times its baseline and the lowest
    of the last {window} measurements. Before there is a baseline of {baseline.MINIMUM} measurements, their median
    counts, where the last {fewest} differ by less than a factor of {steady}. Of layers that jump together the first is
    named. The finding ends when all are back.

    Why it matters: weights change little in one step. Such a factor means a wrong update, or other code that wrote to
    them.

    What to try: restart from a checkpoint before it; inspect the update and the gradient norm at this step; lower the
    learning rate.

    When it is wrong: weights that start near zero; weights that are loaded or reset during training. No finding in 117
    healthy trainings of 39 kinds (110,000 measured values). Before there is a baseline: none in 39 trainings.

    Reference: Molybog et al., A theory on Adam instability (arXiv:2304.09871)
    """

    smallest_rise: float = 10.0  # minimum ratio of the norm to its baseline
    fewest: int = 3  # minimum number of measurements; the last of them must be steady where there is no baseline yet
    window: int = 8  # maximum number of measurements before that count
    steady: float = 1.5  # maximum ratio between the last `fewest` measurements for them to be steady

    kind = "weight_spike"
    instability = Instability.HARMFUL
    noun = "a weight spike"
    plural = "weight spikes"
    question = "Did the weights jump?"
    check_by_hand = (
        "Compare the norm of each parameter with that of the last checkpoint; a factor of 2 is not training."
    )
    symptom = Symptom.LARGE_UPDATES
    order = 210
    quantities = ("param_norm",)
    compared = ("param_norm",)
    across_places = True
    by_sensitivity: ClassVar[Mapping[str, Moves]] = {"smallest_rise": "power"}
    remedies = (Remedy(Action.RESTART_BEFORE_STEP), Remedy(Action.INSPECT_NORM_AND_UPDATE), LOWER_RATE)
    state_type = WeightSpikeState

    def takes(self, _state: WeightSpikeState, point: Point) -> bool:
        return point.finite

    def facts(self, state: WeightSpikeState, point: Point) -> Facts | None:
        last = state.last.setdefault(point.place, deque(maxlen=self.window))
        level = self._baseline(last, point)
        # Weights that start near zero can grow faster than their baseline, without any jump.
        has_jumped = point.value >= self.smallest_rise * max(level, min(last, default=0.0))
        if level > 0 and has_jumped:
            return WeightSpikeFacts(point.value, level, self.smallest_rise, place=point.place)
        last.append(point.value)
        return None

    def _baseline(self, last: Sequence[float], point: Point) -> float:
        """Return the usual norm, or 0 where it is not known yet."""
        if point.scale:
            return point.center
        newest = list(last)[-self.fewest :]
        if len(newest) < self.fewest or min(newest) <= 0 or max(newest) > self.steady * min(newest):
            return 0.0
        return median(last)


@dataclass(frozen=True, slots=True)
class AdamRmsFacts(RiseFacts):
    """A high AdamW RMS: the root mean square of the gradient divided by its second-moment estimate."""

    kind = "adam_rms_high"
    metrics: ClassVar = {"adam_rms": "value", "level": "baseline"}

    threshold: float  # The AdamW RMS above which it is high

    def sentence(self, step: int, unit: str = "step", /) -> str:
        limit = f"threshold {self.threshold:g}"
        return f"AdamW RMS {self.value:.3g} at {unit} {step} ({limit}); baseline {self.baseline:.3g}."


@dataclass(frozen=True, slots=True)
class AdamRmsHigh(StreakDetector):
    """The gradients are larger than Adam's second moment expects.

    What it sees: an AdamW RMS (root mean square of the gradient divided by its second-moment estimate) above {highest}
    and above {smallest_rise} times its baseline; the minimum number of such values in a row is {steps}. The finding
    ends when it is lower.

    Why it matters: the second moment underestimates the gradient, so the step is too large. A loss spike often follows
    1-8 steps later.

    What to try: lower beta2 to 0.95-0.98; clip the updates (StableAdamW); clip gradients.

    When it is wrong: early steps and small layers exceed that without harm. Measured at every step it was found in 38
    of 117 healthy trainings, 29 times in 1000 values; therefore it is INFO only.

    Reference: Wortsman et al., Stable and low-precision training (arXiv:2304.13013)
    """

    highest: float = 1.0  # AdamW RMS above which it is high
    smallest_rise: float = 2.0  # minimum ratio to its baseline
    steps: int = 1  # number of high values in a row

    kind = "adam_rms_high"
    instability = Instability.SIGN
    noun = "a high AdamW RMS"
    plural = "periods of a high AdamW RMS"
    question = "Did the gradient outrun Adam's second moment?"
    check_by_hand = (
        "Log sqrt(mean(grad^2 / max(v, eps^2))) by layer; above 2 the step is larger than the learning rate means."
    )
    order = 200
    quantities = ("adam_rms",)
    compared = ("adam_rms",)
    in_a_row = "steps"
    places = WHOLE
    severities = (Severity.INFO,)
    experimental = True
    remedies = (LOWER_BETA2, Remedy(Action.CLIP_UPDATES), CLIP_GRADIENTS)

    def facts(self, _state: Streak, point: Point) -> Facts | None:
        high = point.value > self.highest and point.value >= point.center * self.smallest_rise
        return AdamRmsFacts(point.value, point.center, self.smallest_rise, self.highest) if high else None
