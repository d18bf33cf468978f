"""Says when the temperature of sparse codes runs away."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mlflow_stability.detectors.detector import Point
from mlflow_stability.detectors.streak import Streak, StreakDetector
from mlflow_stability.vocabulary.facts import Facts
from mlflow_stability.vocabulary.result import Action, Remedy


@dataclass(frozen=True, slots=True)
class SdrTemperatureFacts(Facts):
    """A temperature of sparse codes that is out of range."""

    kind: ClassVar[str] = "sdr_temperature"
    metrics: ClassVar = ("temperature", "first")

    temperature: float
    """The temperature."""
    first: float
    """Its first value."""
    lowest: float
    """The lowest one that is allowed."""
    highest: float
    """The highest one that is allowed."""
    place: str
    """The module."""

    def sentence(self, step: int, unit: str = "step", /) -> str:
        """``temperature of codes 0.0001 at step 400 (allowed 0.001 to 100; first value 1).``"""
        where = f" of {self.place}" if self.place else ""
        limits = f"allowed {self.lowest:g} to {self.highest:g}"
        return f"temperature{where} {self.temperature:.3g} at {unit} {step} ({limits}; first value {self.first:.3g})."


@dataclass(slots=True)
class SdrTemperatureState(Streak):
    """What has been seen so far of one module."""

    first: float | None = None


@dataclass(frozen=True, slots=True)
class SdrTemperature(StreakDetector):
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

    def facts(self, state: SdrTemperatureState, point: Point) -> Facts | None:
        """Whether the temperature is out of range, or far from its first value."""
        first = state.first = point.value if state.first is None else state.first
        drifted = first > 0 and not first / self.drift <= point.value <= first * self.drift
        if self.lowest <= point.value <= self.highest and not drifted:
            return None
        return SdrTemperatureFacts(point.value, first, self.lowest, self.highest, point.place)
