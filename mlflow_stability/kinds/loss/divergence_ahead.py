"""Detect weights that grow faster than they did, which mostly comes before a divergence of the loss."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from math import log
from statistics import linear_regression, median

from mlflow_stability.detectors.detector import WHOLE, Detector, Point
from mlflow_stability.vocabulary.facts import Facts
from mlflow_stability.vocabulary.result import Action, Finding, Remedy, Severity


@dataclass(slots=True)
class DivergenceAheadState:
    logs: deque[float] = field(default_factory=deque)
    """Logarithms of the last norms."""
    sum: float = 0.0
    """How far values lay above the predicted ones, in σ."""
    is_found: bool = False


@dataclass(frozen=True, slots=True)
class FastGrowthFacts(Facts):
    """Weights that grow faster than they did."""

    kind = "divergence_ahead"

    param_norm: float
    """The norm of all weights."""
    above: float
    """How far it is above its course, in nats."""
    cusum: float
    """How far the last norms were above their course in all, in σ."""
    limit: float
    """From which sum on it is a finding, in σ."""

    @property
    def exceeds(self) -> float:
        """By how many times the sum exceeds its limit."""
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

    height: float = 4.0
    """Sum above which it is reported, in σ."""
    slack: float = 1.0
    """How far each measurement may lie above the line, in σ."""
    noise: float = 0.01
    """Smallest σ, as a share of the norm."""
    window: int = 12
    """Maximum number of measurements of the line."""
    fewest: int = 6
    """Minimum number of measurements of the line."""

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
