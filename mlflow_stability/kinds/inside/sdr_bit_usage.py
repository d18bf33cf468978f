"""Says when sparse codes leave most of their bits unused."""

from __future__ import annotations

from dataclasses import dataclass, field

from mlflow_stability.detectors.code_reading import CodeReading
from mlflow_stability.detectors.debounce import Streak
from mlflow_stability.detectors.detector import Detector, Point
from mlflow_stability.detectors.finding import finding
from mlflow_stability.vocabulary.result import Action, Remedy
from mlflow_stability.vocabulary.result.event import Event


@dataclass(slots=True)
class SdrBitUsageState:
    """What has been seen so far of one module."""

    reading: CodeReading = field(default_factory=CodeReading)
    streak: Streak = field(default_factory=Streak)


@dataclass(frozen=True, slots=True)
class SdrBitUsage(Detector):
    """Most bits of the sparse codes are unused.

    What it sees: a module with sparse binary codes of which fewer than {used:percent} of the bits are ever on in the
    batch. Or bits that are on so unevenly that the standard deviation of their duty cycles is more than {uneven} times
    their mean. In {rounds} measurements in a row, and only where {reached:percent} of evenly used bits would be on for
    as many different inputs. The finding ends when more are used.

    Why it matters: bits that are never on carry no information and get little gradient. A few that are always on make
    all codes similar.

    What to try: regularise the duty cycles (boosting); check the number of active bits and the initialisation.

    When it is wrong: batches of one kind, which need few of the bits. No finding in 12 healthy trainings of 4 kinds
    with sparse codes (138 measurements every 100 steps, 1,380 every 10).

    Reference: Cui, Ahmad and Hawkins, The HTM spatial pooler (https://doi.org/10.3389/fncom.2017.00111)
    """

    used: float = 0.5
    """Share of bits below which too few are used."""
    uneven: float = 3.0
    """Ratio of the standard deviation of the duty cycles to their mean above which they are uneven."""
    reached: float = 0.9
    """Share of bits that evenly used ones would reach; below it nothing is judged."""
    rounds: int = 3
    """Number of measurements in a row."""

    kind = "sdr_bit_usage"
    noun = "unused bits of sparse codes"
    question = "Is every bit of the codes used?"
    check_by_hand = (
        "Count how often each bit is on over 1000 inputs; bits that are never or always on carry no information."
    )
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
        Remedy(Action.BOOST_DUTY_CYCLES),
        Remedy(Action.CHECK_ACTIVE_BITS),
    )
    state_type = SdrBitUsageState

    def step(self, state: SdrBitUsageState, point: Point) -> tuple[SdrBitUsageState, Event | None]:
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
            f"{usage:.1%} of the {width:.0f} bits{where} ever on at step {point.step} (threshold {self.used:.0%}); "
            f"standard deviation of their duty cycles {spread:.1f} times their mean (threshold {self.uneven:g}). "
            f"{state.reading.active_bits}",
            {"sdr_bit_usage": usage, "unevenness": spread},
        )
