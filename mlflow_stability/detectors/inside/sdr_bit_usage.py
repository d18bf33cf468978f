"""Says when sparse codes leave most of their bits unused."""

from __future__ import annotations

from dataclasses import dataclass, field

from mlflow_stability.detectors.engine.code_reading import CodeReading
from mlflow_stability.detectors.engine.debounce import Streak
from mlflow_stability.detectors.engine.detector import Detector, Point
from mlflow_stability.detectors.engine.finding import finding
from mlflow_stability.vocabulary.result.event import Event


@dataclass(slots=True)
class Bits:
    """What has been seen so far of one module."""

    reading: CodeReading = field(default_factory=CodeReading)
    streak: Streak = field(default_factory=Streak)


@dataclass(frozen=True, slots=True)
class SdrBitUsage(Detector):
    """Sparse codes leave most of their bits unused.

    What it sees: a module with sparse binary codes of which fewer than half of the bits are ever on in the batch, or
    whose bits are on so unevenly that the standard deviation of their duty cycles is more than 3 times their mean; in 3
    measurements in a row, and only where evenly used bits would nearly all be met by as many different inputs. One
    finding until more are used.

    Why it matters: bits that are never on carry nothing and are seldom reached by a gradient; a few that are always on
    make all codes alike.

    What to try: regularise the duty cycles (boosting); look at the number of active bits and at the initialisation.

    When it is wrong: batches of one kind, which need few of the bits. It spoke in none of 12 healthy trainings of 4
    kinds with sparse codes (138 measurements every 100 steps, 1,380 every 10).

    Reference: Cui, Ahmad and Hawkins, The HTM spatial pooler (https://doi.org/10.3389/fncom.2017.00111)
    """

    used: float = 0.5
    """The share of bits below which too few are used."""
    uneven: float = 3.0
    """How large the deviation of the duty cycles is beside their mean, above which they are uneven."""
    reached: float = 0.9
    """The share of bits that evenly used ones would have been met by; below it nothing is judged."""
    rounds: int = 3
    """In how many measurements in a row."""

    kind = "sdr_bit_usage"
    noun = "unused bits of sparse codes"
    order = 360
    quantities = (
        "sdr_rows",
        "sdr_width",
        "sdr_active_bits",
        "sdr_input_ratio",
        "sdr_bit_usage",
        "sdr_duty_std",
    )
    remedies = (
        "Regularise the duty cycles (boosting).",
        "Look at the number of active bits and at the initialisation.",
    )
    state_type = Bits

    def step(self, state: Bits, point: Point) -> tuple[Bits, Event | None]:
        """Look at the next number of a module's codes; they are judged when all are known."""
        state.reading.take(point)
        values = state.reading.values
        width, active = values.get("sdr_width", 0.0), values.get("sdr_active_bits", 0.0)
        if point.quantity != "sdr_duty_std" or not point.finite or not 0 < active <= width:
            return state, None
        mean = active / width
        if 1 - (1 - mean) ** state.reading.different_inputs < self.reached:
            return state, None
        usage, spread = values.get("sdr_bit_usage", 1.0), point.value / mean
        if not state.streak.reaches(self.rounds, bad=usage < self.used or spread > self.uneven):
            return state, None
        where = f" of {point.place}" if point.place else ""
        return state, finding(
            self,
            point,
            self.severities[-1],
            f"Only {usage:.1%} of the {width:.0f} bits{where} are ever on at step {point.step}, and the standard "
            f"deviation of their duty cycles is {spread:.1f} times their mean. {state.reading.active_bits}",
            {"sdr_bit_usage": usage, "unevenness": spread},
        )
