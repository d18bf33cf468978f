"""Says when the temperature of sparse codes runs away."""

from __future__ import annotations

from dataclasses import dataclass, field

from mlflow_stability.detectors.debounce import Streak
from mlflow_stability.detectors.detector import Detector, Point
from mlflow_stability.detectors.finding import finding
from mlflow_stability.vocabulary.result import Action, Remedy
from mlflow_stability.vocabulary.result.event import Event


@dataclass(slots=True)
class SdrTemperatureState:
    """What has been seen so far of one module."""

    first: float | None = None
    streak: Streak = field(default_factory=Streak)


@dataclass(frozen=True, slots=True)
class SdrTemperature(Detector):
    """The temperature of the sparse codes is out of range.

    What it sees: the temperature of a module with sparse binary codes below {lowest} or above {highest}, or more than
    {drift} times above or below its first value. The finding ends when it is back.

    Why it matters: at a very low temperature the choice of bits gets no gradient; at a very high one it is random.

    What to try: bound the temperature; check its schedule or its learning rate.

    When it is wrong: a schedule that lowers the temperature by more than {drift} times on purpose. No finding in 12
    healthy trainings of 4 kinds with sparse codes (138 measurements every 100 steps, 1,380 every 10).

    Reference: Jang, Gu and Poole, Categorical reparameterization with Gumbel-softmax (arXiv:1611.01144)
    """

    lowest: float = 0.001
    """Minimum temperature."""
    highest: float = 100.0
    """Maximum temperature."""
    drift: float = 10.0
    """Maximum factor above or below its first value."""

    kind = "sdr_temperature"
    noun = "a temperature that runs away"
    plural = "temperatures that run away"
    question = "Is the temperature of the codes in range?"
    check_by_hand = "Print the temperature with the schedule; below 0.1 a relaxed top-k passes almost no gradient."
    order = 370
    quantities = ("sdr_temperature",)
    remedies = (
        Remedy(Action.BOUND_TEMPERATURE),
        Remedy(Action.CHECK_TEMPERATURE_SCHEDULE),
    )
    state_type = SdrTemperatureState

    def step(self, state: SdrTemperatureState, point: Point) -> tuple[SdrTemperatureState, Event | None]:
        """Look at the next temperature."""
        if not point.finite:
            return state, None
        if state.first is None:
            state.first = point.value
        outside = not self.lowest <= point.value <= self.highest
        drifted = state.first > 0 and not state.first / self.drift <= point.value <= state.first * self.drift
        if not state.streak.reaches(1, bad=outside or drifted):
            return state, None
        where = f" of {point.place}" if point.place else ""
        limits = f"allowed {self.lowest:g} to {self.highest:g}"
        return state, finding(
            self,
            point,
            self.severities[-1],
            f"temperature{where} {point.value:.3g} at step {point.step} ({limits}; first value {state.first:.3g}).",
            {"temperature": point.value, "first": state.first},
        )
