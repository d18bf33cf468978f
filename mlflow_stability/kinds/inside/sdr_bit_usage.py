"""Says when sparse codes leave most of their bits unused."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from mlflow_stability.detectors.code_reading import CodeCounts, CodeReading
from mlflow_stability.detectors.detector import Point
from mlflow_stability.detectors.streak import Streak, StreakDetector
from mlflow_stability.vocabulary.facts import Facts
from mlflow_stability.vocabulary.result import Action, Remedy


@dataclass(frozen=True, slots=True)
class SdrBitUsageFacts(Facts):
    """Sparse codes of which most bits are unused, or used unevenly."""

    kind: ClassVar[str] = "sdr_bit_usage"
    metrics: ClassVar = ("sdr_bit_usage", "unevenness")

    sdr_bit_usage: float
    """Share of the bits that are on for any input of the batch."""
    used: float
    """The threshold of that share."""
    unevenness: float
    """Standard deviation of the duty cycles of bits, as a ratio to their mean."""
    uneven: float
    """The threshold of that ratio."""
    codes: CodeCounts
    """The codes of the batch."""
    place: str
    """The module."""

    def sentence(self, step: int, unit: str = "step", /) -> str:
        """``12.5% of the 512 bits of codes ever on at step 400 (threshold 50%); standard deviation of …``."""
        where = f" of {self.place}" if self.place else ""
        return (
            f"{self.sdr_bit_usage:.1%} of the {self.codes.width:.0f} bits{where} ever on at {unit} {step} (threshold "
            f"{self.used:.0%}); standard deviation of their duty cycles {self.unevenness:.1f} times their mean "
            f"(threshold {self.uneven:g}). {self.codes.active_in_words}"
        )


@dataclass(slots=True)
class SdrBitUsageState(Streak):
    """What has been seen so far of one module."""

    reading: CodeReading = field(default_factory=CodeReading)


@dataclass(frozen=True, slots=True)
class SdrBitUsage(StreakDetector):
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
    in_a_row = "rounds"
    remedies = (
        Remedy(Action.BOOST_DUTY_CYCLES),
        Remedy(Action.CHECK_ACTIVE_BITS),
    )
    state_type = SdrBitUsageState

    def takes(self, state: SdrBitUsageState, point: Point) -> bool:
        """Take a number of a module's codes in; they are judged when all are known."""
        reading = state.reading
        reading.take(point)
        if point.quantity != "sdr_duty_std" or not point.finite:
            return False
        mean = reading.counts.active_share
        return 0 < mean <= 1 and 1 - (1 - mean) ** reading.different_inputs >= self.reached

    def facts(self, state: SdrBitUsageState, point: Point) -> Facts | None:
        """Whether few bits are used, or bits unevenly."""
        codes, usage = state.reading.counts, state.reading.values.get("sdr_bit_usage", 1.0)
        spread = point.value / codes.active_share
        if usage >= self.used and spread <= self.uneven:
            return None
        return SdrBitUsageFacts(usage, self.used, spread, self.uneven, codes, point.place)
