"""Detect divergences early: in the first steps, and by weights that grow faster than they did."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf, log
from statistics import linear_regression, median
from typing import ClassVar

from mlflow_stability.detectors.detector import WHOLE, Detector, Point
from mlflow_stability.detectors.episodes import EpisodeFilter
from mlflow_stability.detectors.finding_type import Instability, Moves
from mlflow_stability.detectors.loss_level import REPLACING, RISE, RISE_REPLACED
from mlflow_stability.vocabulary.facts import Facts, LossRiseFacts, rises_beyond
from mlflow_stability.vocabulary.loss_level import NoLevel
from mlflow_stability.vocabulary.result import (
    CLIP_GRADIENTS,
    LOWER_RATE_3_TO_10,
    WARM_UP_LEARNING_RATE,
    Action,
    Finding,
    Remedy,
    Severity,
)
from mlflow_stability.vocabulary.text.phrases import factor


@dataclass(slots=True)
class DivergenceAtStartState:
    losses: int = 0
    first_loss: float = 0.0
    first_norm: float = 0.0
    first_count: float = 0.0  # number of micro-batches of the first step
    step: int = -1  # the step of the last loss
    loss: float = 0.0
    update: float = 0.0  # the largest update, as a share of the weights
    row: int = 0  # number of steps in a row with a high loss and gradient norm
    onset: int = -1  # the first of these steps
    lower_row: int = 0  # the same for the lower rise, which counts after an update that replaced the weights
    lower_onset: int = -1
    is_over: bool = False  # whether the start is over, and nothing is judged any more
    episode_filter: EpisodeFilter = field(default_factory=EpisodeFilter)


@dataclass(frozen=True, slots=True)
class StartFacts(LossRiseFacts):
    """A loss that diverged in the first steps of the training; `baseline` is the first loss."""

    kind = "divergence_at_start"
    metrics: ClassVar = {"loss": "value", "level": "baseline", "update_ratio": "update_ratio", "onset": "onset"}

    update_ratio: float  # The largest update up to then, as a share of the norm of the weights
    onset: int  # The first step of the high losses
    steps_in_a_row: int  # Number of high losses in a row
    threshold: float  # From how many times the first loss on a loss is high
    exceeds: float | None = None
    """By how many times the rise is the smallest one of a loss that has a level, both as logarithms."""

    def sentence(self, step: int, unit: str = "step", /) -> str:
        update = (
            f"{100 * self.update_ratio:.2g}% of"
            if self.update_ratio < 1
            else f"{float(f'{self.update_ratio:.2g}'):,g} times"
        )
        return (
            f"loss {self.value:.4g} at {unit} {step}, {factor(self.value / self.baseline)} times its first value of "
            f"{self.baseline:.4g} (threshold {self.threshold:g}) for {self.steps_in_a_row} {unit}s in a row, after one "
            f"step changed the weights by {update} their norm."
        )


@dataclass(frozen=True, slots=True)
class DivergenceAtStart(Detector):
    """The loss diverged in the first steps of the training.

    What it sees: among the first {steps} steps, a loss and a gradient norm at {smallest_rise} times their first value
    or more. Either {huge_row} such steps in a row after an update of {huge_update} of the weight norm, or {large_row}
    in a row after an update of {large_update}. After an update of {loss_level.REPLACING} times the weight norm or
    more, a ratio of {loss_level.RISE_REPLACED} in {large_row} steps in a row is enough. Nothing is reported without
    measured updates: with tiny batches a low first loss looks the same. In adversarial training, such as a GAN, the
    ratio is {smallest_rise_adversarial}; other losses whose level does not measure progress are not judged. Critical
    from {smallest_rise:sure_power} times the first loss on.

    Why it matters: the run will not recover, or it will train on from weights that are far too large; only the initial
    weights come before it. The learning rate is too high.

    What to try: lower the learning rate by a factor of 3 to 10; warm up over 1-5 % of the steps; clip gradients.

    When it is wrong: a loss whose scale is raised on purpose in the first steps. No finding in 117 healthy trainings of
    39 kinds.

    Reference: Wortsman et al., Small-scale proxies for large-scale training instabilities (arXiv:2309.14322)
    """

    steps: int = 32  # number of losses that count as the start; later losses have a baseline
    smallest_rise: float = 3.0  # minimum ratio of loss and gradient norm to their first values
    smallest_rise_adversarial: float = RISE  # minimum ratio in adversarial training, such as a GAN
    huge_update: float = 0.3  # update, as a share of the weight norm, after which `huge_row` steps are enough
    huge_row: int = 3  # number of high steps in a row after a huge update
    large_update: float = 0.05  # update, as a share of the weight norm, after which `large_row` steps are needed
    large_row: int = 8  # number of high steps in a row after a large update

    kind = "divergence"
    instability = Instability.HARMFUL
    order = 50
    rule = "start"
    quantities = ("loss", "micro_batches", "grad_norm", "update_ratio")
    places = WHOLE
    severities = (Severity.WARNING, Severity.CRITICAL)
    by_sensitivity: ClassVar[Mapping[str, Moves]] = {"smallest_rise": "power"}
    remedies = (LOWER_RATE_3_TO_10, WARM_UP_LEARNING_RATE, CLIP_GRADIENTS)
    state_type = DivergenceAtStartState

    def step(self, state: DivergenceAtStartState, point: Point) -> tuple[DivergenceAtStartState, Finding | None]:
        if state.is_over or not point.finite:
            return state, None
        if point.has_level:
            return state, self._look(state, point, self.smallest_rise)
        if point.reason is NoLevel.ADVERSARIAL:
            return state, self._look(state, point, self.smallest_rise_adversarial)
        return state, None

    def _look(self, state: DivergenceAtStartState, point: Point, rise: float) -> Finding | None:
        if point.quantity == "update_ratio":
            state.update = max(state.update, point.value)
            return self._judge(state, point, rise)
        if point.quantity == "micro_batches":
            if state.first_count and point.value > state.first_count:  # the first step of a script may have fewer
                state.first_loss *= point.value / state.first_count
                state.first_norm *= point.value / state.first_count
            state.first_count = max(state.first_count, point.value)
            return None
        if point.quantity == "loss":
            state.losses += 1
            state.is_over = state.losses > self.steps or (state.losses == 1 and point.value <= 0)
            state.first_loss = state.first_loss or point.value
            state.step, state.loss = point.step, point.value
            return None
        if point.step != state.step:
            return None
        state.first_norm = state.first_norm or point.value
        multiple = min(state.loss / state.first_loss, point.value / state.first_norm) if state.first_norm > 0 else inf
        state.row = state.row + 1 if multiple >= rise else 0
        state.onset = point.step if state.row == 1 else state.onset
        is_above = point.has_level and multiple >= RISE_REPLACED
        state.lower_row = state.lower_row + 1 if is_above else 0
        state.lower_onset = point.step if state.lower_row == 1 else state.lower_onset
        return self._judge(state, point, rise)

    def _judge(self, state: DivergenceAtStartState, point: Point, rise: float) -> Finding | None:
        needed = self.huge_row if state.update >= self.huge_update else self.large_row
        row, onset = state.row, state.onset
        if row < needed or state.update < self.large_update:
            row, onset, rise = state.lower_row, state.lower_onset, RISE_REPLACED
            if row < self.large_row or state.update < REPLACING:
                return None
        exceeds = rises_beyond(state.loss, state.first_loss, self.smallest_rise)
        facts = StartFacts(state.loss, state.first_loss, state.update, onset, row, rise, exceeds)
        severity = self.severity_of(facts)
        if not state.episode_filter.report(severity):
            return None
        return self.finding(point._replace(quantity="loss"), severity, facts)


@dataclass(slots=True)
class DivergenceAheadState:
    logs: deque[float] = field(default_factory=deque)  # logarithms of the last norms
    sum: float = 0.0  # how far values lay above the predicted ones, in standard deviations
    is_found: bool = False


@dataclass(frozen=True, slots=True)
class FastGrowthFacts(Facts):
    """Weights that grow faster than they did."""

    kind = "divergence_ahead"

    param_norm: float  # The norm of all weights
    above: float  # How far it is above its course, in nats
    cusum: float  # How far the last norms were above their course in all, in σ
    limit: float  # From which sum on it is a finding, in σ

    @property
    def exceeds(self) -> float:
        return self.cusum / self.limit

    def sentence(self, step: int, unit: str = "step", /) -> str:
        return (
            f"weight norm {self.param_norm:.4g} at {unit} {step}, {self.above:.1%} above its course (CUSUM "
            f"{self.cusum:.1f}, threshold {self.limit:g}): the loss may follow."
        )


@dataclass(frozen=True, slots=True)
class DivergenceAhead(Detector):
    """The weights grow faster than they did: the loss may leave its level soon.

    What it sees: the norm of all weights, every 10 steps. A line through the logarithms of the last {window}, at least
    {fewest}, predicts the next one. How many σ it lies above the line, less {slack}, is added up, and a sum above
    {height} is reported (a CUSUM). That σ is at least {noise:percent} of the norm. The finding ends when the sum is
    zero again.

    Why it matters: where a learning rate creeps up or weights run away, the norm shows it before the loss does.

    What to try: write a checkpoint now; lower the learning rate, or look at its schedule; add weight decay.

    When it is wrong: a schedule that raises the learning rate again, layers that begin to train later, and weights that
    other code writes to. It came before the loss in 13 of 23 trainings that went wrong slowly, 30 steps (median), and
    in none of 32 healthy ones of the same benchmark, but in 5 of 40 further healthy kinds. It looks only when it is
    asked for.

    Reference: Page, Continuous inspection schemes (1954)
    """

    height: float = 4.0  # sum above which it is reported, in σ
    slack: float = 1.0  # how far each measurement may lie above the line, in σ
    noise: float = 0.01  # smallest σ, as a share of the norm
    window: int = 12  # maximum number of measurements of the line
    fewest: int = 6  # minimum number of measurements of the line

    kind = "divergence_ahead"
    noun = "a sign of divergence"
    plural = "signs of divergence"
    order = 55
    quantities = ("param_norm",)
    places = WHOLE
    severities = (Severity.INFO,)
    experimental = True
    on_request = True
    remedies = (
        Remedy(Action.WRITE_CHECKPOINT),
        Remedy(Action.LOWER_RATE_AND_CHECK_SCHEDULE),
        Remedy(Action.ADD_WEIGHT_DECAY),
    )
    state_type = DivergenceAheadState

    def step(self, state: DivergenceAheadState, point: Point) -> tuple[DivergenceAheadState, Finding | None]:
        if not point.finite or point.value <= 0:
            return state, None
        now, logs = log(point.value), state.logs
        event = None
        if len(logs) >= self.fewest:
            predicted, noise = self._line(logs)
            state.sum = max(0.0, state.sum + (now - predicted) / noise - self.slack)
            if state.sum > self.height and not state.is_found:
                facts = FastGrowthFacts(point.value, now - predicted, state.sum, self.height)
                event = self.finding(point, self.severities[-1], facts)
            state.is_found = state.sum > 0 and (state.is_found or event is not None)
        logs.append(now)
        if len(logs) > self.window:
            logs.popleft()
        return state, event

    def _line(self, logs: deque[float]) -> tuple[float, float]:
        """Return the next value that a line through the last ones predicts, and σ around it."""
        slope, intercept = linear_regression(range(len(logs)), logs)
        residuals = [abs(value - intercept - slope * index) for index, value in enumerate(logs)]
        return intercept + slope * len(logs), max(1.4826 * median(residuals), self.noise)
