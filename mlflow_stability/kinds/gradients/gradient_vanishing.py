"""Says when the gradient has all but gone while there is still something to learn."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median
from typing import ClassVar

from mlflow_stability.detectors.detector import WHOLE, Detector, Point
from mlflow_stability.detectors.finding_type import Symptom
from mlflow_stability.detectors.loss_fall import FIRST_VALUES, FirstValues, LossFall
from mlflow_stability.vocabulary.facts import LimitFacts
from mlflow_stability.vocabulary.result import Action, Remedy
from mlflow_stability.vocabulary.result.finding import Finding
from mlflow_stability.vocabulary.result.severity import Severity


@dataclass(frozen=True, slots=True)
class GradientVanishingFacts(LimitFacts):
    """A gradient norm that is close to zero, in several steps in a row."""

    kind: ClassVar[str] = "gradient_vanishing"
    metrics: ClassVar = {
        "grad_norm": "value",
        "limit": "threshold",
        "start": "start_norm",
        "share_of_loss": "share_of_loss",
    }

    start_norm: float | None
    """The gradient norm at the start, where it is below a share of that; None where it is below the threshold."""
    share_of_start: float
    """That share."""
    share_of_loss: float | None
    """The loss, as a share of its start; None where that is not known."""

    def sentence(self, step: int, unit: str = "step", /) -> str:
        """``gradient norm 1e-07 at step 400, below the threshold of 1e-05 for 10 steps; loss at 99% of its start.``"""
        below = f"the threshold of {self.threshold:.3g}"
        if self.start_norm is not None:
            below = f"{self.share_of_start:.0%} of its start ({self.start_norm:.3g})"
        loss = "" if self.share_of_loss is None else f"; loss at {self.share_of_loss:.0%} of its start"
        norm = f"gradient norm {self.value:.3g} at {unit} {step}"
        return f"{norm}, below {below} for {self.in_a_row} {unit}s{loss}."


@dataclass(slots=True)
class GradientVanishingState:
    """What has been seen so far."""

    fall: LossFall = field(default_factory=LossFall)
    first_norms: list[float] = field(default_factory=list)
    start_norm: float | None = None
    tiny: int = 0
    """For how many steps in a row the norm has been below the limit."""
    faded: int = 0
    """For how many steps in a row it has been below its share of the start."""
    said: bool = False
    measured: bool = False
    """Whether any norm has been above zero."""


@dataclass(frozen=True, slots=True)
class GradientVanishing(Detector):
    """The gradient norm is close to zero, and the loss has hardly fallen.

    What it sees: a norm below {smallest} for {steps} steps, unless the loss has fallen to {gained:percent} of its
    start, the median of its first {start} values. Where the loss starts below 1, the threshold is that share of it: a
    loss that is multiplied by a small number has small gradients, and trains. Or a norm below {share_of_start:percent}
    of its start for {faded_steps} steps while the loss has fallen by less than {stuck:fall}. A loss below
    {loss_fall.LEARNT:percent} of its first value is learnt, and a tiny gradient is normal then. A norm of exactly 0
    from the first step on counts after {faded_steps} steps without progress; before that it may not be measured. The
    finding ends when the norm is back.

    Why it matters: the weights no longer change; more steps achieve nothing.

    What to try: check the initialisation; add residual connections; normalise before each block; raise the learning
    rate; look for saturated or dead units.

    When it is wrong: norms that were logged after clipping to a tiny value.

    Reference: Glorot and Bengio, Understanding the difficulty of training deep feedforward neural networks (2010)
    """

    smallest: float = 1e-5
    """Gradient norm below which it has vanished, for each unit of a loss that starts below 1."""
    steps: int = 10
    """Number of steps in a row below `smallest`."""
    gained: float = 0.5
    """At or below this share of its start the loss is learnt, and a tiny gradient is normal."""
    share_of_start: float = 0.1
    """Share of the norm at the start below which it has faded."""
    faded_steps: int = 200
    """Number of steps in a row below `share_of_start`."""
    stuck: float = 0.98
    """Minimum share of the loss at the start for a faded gradient to count."""
    start: int = FIRST_VALUES
    """Number of first values that define the start; their median counts."""

    kind = "gradient_vanishing"
    noun = "vanishing gradients"
    symptom = Symptom.VANISHING
    order = 70
    quantities = ("loss", "grad_norm")
    places = WHOLE
    remedies = (
        Remedy(Action.CHECK_INITIALISATION),
        Remedy(Action.ADD_RESIDUALS_OR_NORMALISE),
        Remedy(Action.RAISE_LEARNING_RATE),
        Remedy(Action.LOOK_FOR_SATURATED_UNITS),
    )

    def begin(self) -> GradientVanishingState:
        """Start afresh, knowing nothing."""
        return GradientVanishingState(LossFall(FirstValues(count=self.start)))

    def step(self, state: GradientVanishingState, point: Point) -> tuple[GradientVanishingState, Finding | None]:
        """Look at the next loss or gradient norm."""
        if not point.finite:
            return state, None
        if point.quantity == "loss":
            state.fall.take(point.value)
            return state, None
        norm = point.value
        if state.start_norm is None:
            state.first_norms.append(norm)
            if len(state.first_norms) == self.start:
                state.start_norm = median(state.first_norms)
        state.measured = state.measured or norm > 0
        start = state.start_norm
        limit = self.smallest * (state.fall.size_at_start() if point.has_level else 1.0)
        tiny, faded = norm < limit, start is not None and norm < start * self.share_of_start
        share = state.fall.share() if (tiny or faded) and point.has_level else None
        if (tiny or faded) and point.has_level and state.fall.learnt():
            tiny = faded = False
        tiny = tiny and not (point.has_level and state.fall.has_fallen_to(self.gained))
        state.tiny = state.tiny + 1 if tiny else 0
        state.faded = state.faded + 1 if faded and share is not None and share >= self.stuck else 0
        if not tiny and not faded:
            state.said = False
        elif not state.measured and not self._stands_still(state, share):
            pass  # a log that writes 0 for what it does not measure
        elif not state.said and (state.tiny >= self.steps or state.faded >= self.faded_steps):
            state.said = True
            return state, self._vanished(state, point, limit)
        return state, None

    def _stands_still(self, state: GradientVanishingState, share: float | None) -> bool:
        """Whether a loss has stood where it began for so long that even a norm of exactly 0 from the start is one."""
        return state.tiny >= self.faded_steps and share is not None and share >= self.stuck

    def _vanished(self, state: GradientVanishingState, point: Point, limit: float) -> Finding:
        is_tiny = state.tiny >= self.steps
        facts = GradientVanishingFacts(
            point.value,
            limit,
            None if is_tiny else state.start_norm,
            self.share_of_start,
            state.fall.share(),
            in_a_row=state.tiny if is_tiny else state.faded,
        )
        return self.finding(point, Severity.WARNING, facts)
