"""Detect sparse codes that collapse, leave bits unused, or whose temperature is out of range."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from mlflow_stability.detectors.detector import Detector, Point
from mlflow_stability.detectors.episodes import EpisodeFilter
from mlflow_stability.detectors.finding_type import Symptom
from mlflow_stability.detectors.streak import Streak, StreakDetector
from mlflow_stability.vocabulary.facts import Facts, LimitFacts
from mlflow_stability.vocabulary.result import RAISE_TEMPERATURE_2_TO_3, Action, Finding, Remedy, Severity

QUANTITIES = ("sdr_rows", "sdr_width", "sdr_active_bits", "sdr_input_ratio", "sdr_unique_ratio")
"""The share of unique patterns, after what it is judged by."""


@dataclass(frozen=True, slots=True)
class CodeCounts:
    """The sparse codes of one batch, counted."""

    active_bits: float  # Mean number of bits of a code that are on
    width: float  # Number of bits of a code; 0 where that is not known
    codes: float | None  # Number of unique codes; None where the size of the batch is not known
    inputs: float  # Number of different inputs

    @property
    def active_share(self) -> float:
        """Share of the bits that are on; 0 where the width is not known."""
        return self.active_bits / self.width if self.width else 0.0

    @property
    def active_in_words(self) -> str:
        """``Active bits: 156.2/512 (30.5%).``"""
        share = f"{self.active_bits:.1f}/{self.width:.0f} ({self.active_share:.1%})"
        return f"Active bits: {share}." if self.width else ""

    def __str__(self) -> str:
        """``: 20 codes for 64 different inputs. Active bits: 12.0/512 (2.3%).``; a full stop without counts."""
        if self.codes is None:
            return "."
        codes = "1 code" if round(self.codes) == 1 else f"{self.codes:,.0f} codes"
        return f": {codes} for {self.inputs:,.0f} different inputs. {self.active_in_words}"


@dataclass(slots=True)
class CodeReading:
    """What was measured of the codes of one module at the current step."""

    step: int = -1
    values: dict[str, float] = field(default_factory=dict)

    def take(self, point: Point) -> None:
        if point.step != self.step:
            self.step = point.step
            self.values.clear()
        if point.finite:
            self.values[point.quantity] = point.value
        else:
            self.values.pop(point.quantity, None)

    def is_complete(self, point: Point, min_inputs: int) -> bool:
        """Take a point; return whether it is the share of unique patterns of enough different inputs.

        A script may log that share alone: then the number of inputs is not known, and any number is enough.
        """
        self.take(point)
        complete = point.quantity == QUANTITIES[-1] and point.finite
        return complete and ("sdr_rows" not in self.values or self.different_inputs >= min_inputs)

    @property
    def different_inputs(self) -> float:
        """Number of different inputs; of all inputs where that is not known."""
        return self.values.get("sdr_rows", 0.0) * self.values.get("sdr_input_ratio", 1.0)

    @property
    def unique_share(self) -> float:
        """Number of unique codes, as a share of the different inputs; at most 1."""
        if "sdr_rows" not in self.values:
            return self.values.get("sdr_unique_ratio", 1.0)
        return min(self._unique_codes / self.different_inputs, 1.0) if self.different_inputs else 1.0

    @property
    def counts(self) -> CodeCounts:
        return CodeCounts(
            self.values.get("sdr_active_bits", 0.0),
            self.values.get("sdr_width", 0.0),
            self._unique_codes if "sdr_rows" in self.values else None,
            self.different_inputs,
        )

    @property
    def _unique_codes(self) -> float:
        return self.values.get("sdr_rows", 0.0) * self.values.get("sdr_unique_ratio", 0.0)


@dataclass(frozen=True, slots=True)
class SdrCollapseFacts(LimitFacts):
    """Sparse codes of which few are unique, as a share of the different inputs."""

    kind: ClassVar[str] = "sdr_collapse"
    metrics: ClassVar = {"sdr_unique_ratio": "value", "limit": "threshold", "active_bits": "codes.active_bits"}

    codes: CodeCounts  # The codes of the batch

    def sentence(self, step: int, unit: str = "step", /) -> str:
        where = f" of {self.place}" if self.place else ""
        return f"{self.value:.1%} unique codes{where} at {unit} {step} (threshold {self.threshold:.0%}){self.codes}"


@dataclass(slots=True)
class SdrCollapseState:
    reading: CodeReading = field(default_factory=CodeReading)
    row: int = 0  # number of measurements in a row with too few unique codes
    episode_filter: EpisodeFilter = field(default_factory=EpisodeFilter)


@dataclass(frozen=True, slots=True)
class SdrCollapse(Detector):
    """Different inputs get the same sparse code.

    What it sees: a module with sparse binary codes (at least 64 bits, less than a quarter on) with fewer than
    {unique:percent} unique codes, in {rounds} measurements in a row. Codes are counted against the different inputs of
    the batch, where those can be seen; fewer than {fewest} are not judged. Critical below {unique:sure_below}. The
    finding ends when there are more.

    Why it matters: later layers cannot distinguish inputs that share one code.

    What to try: raise the temperature by a factor of 2 to 3; add a loss that separates tokens; use more bits.

    When it is wrong: inputs that differ in noise alone; codes that should be few, such as those of a codebook. No
    finding in 12 healthy trainings of 4 kinds with sparse codes (138 measurements every 100 steps, 1,380 every 10).

    Reference: Ahmad and Hawkins, Properties of sparse distributed representations (arXiv:1503.07469)
    """

    unique: float = 0.3  # share of unique codes below which it is a collapse
    rounds: int = 2  # number of measurements in a row
    fewest: int = 32  # minimum number of different inputs

    kind = "sdr_collapse"
    noun = "a collapse of sparse codes"
    plural = "collapses of sparse codes"
    question = "Are the codes of different inputs different?"
    check_by_hand = (
        "Encode 1000 different inputs: count unique codes; below {unique:percent} of the inputs is a collapse."
    )
    symptom = Symptom.INSIDE
    order = 340
    quantities = QUANTITIES
    severities = (Severity.WARNING, Severity.CRITICAL)
    remedies = (RAISE_TEMPERATURE_2_TO_3, Remedy(Action.SEPARATE_TOKENS), Remedy(Action.USE_MORE_BITS))
    state_type = SdrCollapseState

    def step(self, state: SdrCollapseState, point: Point) -> tuple[SdrCollapseState, Finding | None]:
        if not state.reading.is_complete(point, self.fewest):
            return state, None
        share = state.reading.unique_share
        if not share < self.unique:
            state.row = 0
            state.episode_filter.note_calm(1)
            return state, None
        state.row += 1
        facts = SdrCollapseFacts(share, self.unique, state.reading.counts, in_a_row=self.rounds, place=point.place)
        severity = self.severity_of(facts)
        if state.row < self.rounds or not state.episode_filter.report(severity):
            return state, None
        return state, self.finding(point, severity, facts)


@dataclass(frozen=True, slots=True)
class SdrLowDiversityFacts(Facts):
    """Sparse codes of which fewer are unique than before, as a share of the different inputs."""

    kind: ClassVar[str] = "sdr_low_diversity"
    metrics: ClassVar = ("sdr_unique_ratio", "best")

    sdr_unique_ratio: float  # Number of unique codes, as a share of the different inputs
    best: float  # The largest such share before
    threshold: float  # The share above which there are enough
    codes: CodeCounts  # The codes of the batch
    place: str  # The module

    def sentence(self, step: int, unit: str = "step", /) -> str:
        where = f" of {self.place}" if self.place else ""
        return (
            f"{self.sdr_unique_ratio:.1%} unique codes{where} at {unit} {step} (threshold {self.threshold:.0%}), down "
            f"from {self.best:.1%}{self.codes}"
        )


@dataclass(slots=True)
class SdrLowDiversityState(Streak):
    reading: CodeReading = field(default_factory=CodeReading)
    best: float = 0.0


@dataclass(frozen=True, slots=True)
class SdrLowDiversity(StreakDetector):
    """Fewer inputs get a sparse code of their own.

    What it sees: a module with sparse binary codes whose share of unique codes is between {lowest:percent} and
    {highest:percent}, and {fallen:percent} or more below its best, in {rounds} measurements in a row. Unique codes are
    counted against the different inputs of the batch, where those can be seen; fewer than {fewest} are not judged. The
    finding ends when there are more.

    Why it matters: a collapse starts this way.

    What to try: raise the temperature; add a loss that separates tokens; use more bits.

    When it is wrong: inputs that differ in noise alone, which a good code ignores. No finding in 12 healthy trainings
    of 4 kinds with sparse codes (138 measurements every 100 steps, 1,380 every 10).

    Reference: Ahmad and Hawkins, Properties of sparse distributed representations (arXiv:1503.07469)
    """

    lowest: float = 0.3  # share of unique codes below which it is a collapse instead
    highest: float = 0.6  # share of unique codes above which there are enough
    fallen: float = 0.1  # minimum decrease below the best share
    rounds: int = 2  # number of measurements in a row
    fewest: int = 32  # minimum number of different inputs

    kind = "sdr_low_diversity"
    noun = "sparse codes that become alike"
    question = "Is the diversity of the codes falling?"
    check_by_hand = "Plot unique codes over inputs for the last 10 measurements; a steady fall ends in a collapse."
    order = 350
    quantities = QUANTITIES
    in_a_row = "rounds"
    remedies = (Remedy(Action.RAISE_TEMPERATURE), Remedy(Action.SEPARATE_TOKENS), Remedy(Action.USE_MORE_BITS))
    state_type = SdrLowDiversityState

    def takes(self, state: SdrLowDiversityState, point: Point) -> bool:
        return state.reading.is_complete(point, self.fewest)

    def facts(self, state: SdrLowDiversityState, point: Point) -> Facts | None:
        share = state.reading.unique_share
        state.best = max(state.best, share)
        if not (self.lowest <= share < self.highest and share <= state.best - self.fallen):
            return None
        return SdrLowDiversityFacts(share, state.best, self.highest, state.reading.counts, point.place)


@dataclass(frozen=True, slots=True)
class SdrBitUsageFacts(Facts):
    kind: ClassVar[str] = "sdr_bit_usage"
    metrics: ClassVar = ("sdr_bit_usage", "unevenness")

    sdr_bit_usage: float  # Share of the bits that are on for any input of the batch
    used: float  # The threshold of that share
    unevenness: float  # Standard deviation of the duty cycles of bits, as a ratio to their mean
    uneven: float  # The threshold of that ratio
    codes: CodeCounts  # The codes of the batch
    place: str  # The module

    def sentence(self, step: int, unit: str = "step", /) -> str:
        where = f" of {self.place}" if self.place else ""
        return (
            f"{self.sdr_bit_usage:.1%} of the {self.codes.width:.0f} bits{where} ever on at {unit} {step} (threshold "
            f"{self.used:.0%}); standard deviation of their duty cycles {self.unevenness:.1f} times their mean "
            f"(threshold {self.uneven:g}). {self.codes.active_in_words}"
        )


@dataclass(slots=True)
class SdrBitUsageState(Streak):
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

    used: float = 0.5  # share of bits below which too few are used
    uneven: float = 3.0  # ratio of the standard deviation of the duty cycles to their mean above which they are uneven
    reached: float = 0.9  # share of bits that evenly used ones would reach; below it nothing is judged
    rounds: int = 3  # number of measurements in a row

    kind = "sdr_bit_usage"
    noun = "unused bits of sparse codes"
    question = "Is every bit of the codes used?"
    check_by_hand = (
        "Count how often each bit is on over 1000 inputs; bits that are never or always on carry no information."
    )
    order = 360
    quantities = ("sdr_rows", "sdr_width", "sdr_active_bits", "sdr_input_ratio", "sdr_bit_usage", "sdr_duty_std")
    in_a_row = "rounds"
    remedies = (Remedy(Action.BOOST_DUTY_CYCLES), Remedy(Action.CHECK_ACTIVE_BITS))
    state_type = SdrBitUsageState

    def takes(self, state: SdrBitUsageState, point: Point) -> bool:
        reading = state.reading
        reading.take(point)
        if point.quantity != "sdr_duty_std" or not point.finite:
            return False
        mean = reading.counts.active_share
        return 0 < mean <= 1 and 1 - (1 - mean) ** reading.different_inputs >= self.reached

    def facts(self, state: SdrBitUsageState, point: Point) -> Facts | None:
        codes, usage = state.reading.counts, state.reading.values.get("sdr_bit_usage", 1.0)
        spread = point.value / codes.active_share
        if usage >= self.used and spread <= self.uneven:
            return None
        return SdrBitUsageFacts(usage, self.used, spread, self.uneven, codes, point.place)


@dataclass(frozen=True, slots=True)
class SdrTemperatureFacts(Facts):
    kind: ClassVar[str] = "sdr_temperature"
    metrics: ClassVar = ("temperature", "first")

    temperature: float  # The temperature
    first: float  # Its first value
    lowest: float  # The lowest one that is allowed
    highest: float  # The highest one that is allowed
    place: str  # The module

    def sentence(self, step: int, unit: str = "step", /) -> str:
        where = f" of {self.place}" if self.place else ""
        limits = f"allowed {self.lowest:g} to {self.highest:g}"
        return f"temperature{where} {self.temperature:.3g} at {unit} {step} ({limits}; first value {self.first:.3g})."


@dataclass(slots=True)
class SdrTemperatureState(Streak):
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

    lowest: float = 0.001  # minimum temperature
    highest: float = 100.0  # maximum temperature
    drift: float = 10.0  # maximum factor above or below its first value

    kind = "sdr_temperature"
    noun = "a temperature that runs away"
    plural = "temperatures that run away"
    question = "Is the temperature of the codes in range?"
    check_by_hand = "Print the temperature with the schedule; below 0.1 a relaxed top-k passes almost no gradient."
    order = 370
    quantities = ("sdr_temperature",)
    remedies = (Remedy(Action.BOUND_TEMPERATURE), Remedy(Action.CHECK_TEMPERATURE_SCHEDULE))
    state_type = SdrTemperatureState

    def facts(self, state: SdrTemperatureState, point: Point) -> Facts | None:
        first = state.first = point.value if state.first is None else state.first
        drifted = first > 0 and not first / self.drift <= point.value <= first * self.drift
        if self.lowest <= point.value <= self.highest and not drifted:
            return None
        return SdrTemperatureFacts(point.value, first, self.lowest, self.highest, point.place)
