"""Says when different inputs get the same sparse code.

Says when sparse codes become more alike.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from mlflow_stability.detectors.code_reading import QUANTITIES, CodeReading
from mlflow_stability.detectors.debounce import EpisodeFilter, Streak
from mlflow_stability.detectors.detector import Detector, Point
from mlflow_stability.detectors.finding import finding, severity_of
from mlflow_stability.detectors.finding_type import Symptom
from mlflow_stability.vocabulary.result import RAISE_TEMPERATURE_2_TO_3, Action, Remedy
from mlflow_stability.vocabulary.result.event import Event, Severity


@dataclass(slots=True)
class SdrCollapseState:
    """What has been seen so far of one module."""

    reading: CodeReading = field(default_factory=CodeReading)
    row: int = 0
    """In how many measurements in a row there have been too few codes."""
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

    unique: float = 0.3
    """Share of unique codes below which it is a collapse."""
    rounds: int = 2
    """Number of measurements in a row."""
    fewest: int = 32
    """Minimum number of different inputs."""

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
    judged = "sdr_unique_ratio"
    severities = (Severity.WARNING, Severity.CRITICAL)
    remedies = (
        RAISE_TEMPERATURE_2_TO_3,
        Remedy(Action.SEPARATE_TOKENS),
        Remedy(Action.USE_MORE_BITS),
    )
    state_type = SdrCollapseState

    def step(self, state: SdrCollapseState, point: Point) -> tuple[SdrCollapseState, Event | None]:
        """Look at the next number of a module's codes; they are judged when the unique patterns are known."""
        reading = state.reading
        reading.take(point)
        if point.quantity != QUANTITIES[-1] or not point.finite or not reading.can_be_judged(self.fewest):
            return state, None
        share = reading.unique_share
        if not share < self.unique:
            state.row = 0
            state.episode_filter.quiet(1)
            return state, None
        state.row += 1
        bits = reading.values.get("sdr_active_bits", 0.0)
        evidence = {"sdr_unique_ratio": share, "limit": self.unique, "active_bits": bits}
        severity = severity_of(self, evidence)
        if state.row < self.rounds or not state.episode_filter.speaks(severity):
            return state, None
        where = f" of {point.place}" if point.place else ""
        return state, finding(
            self,
            point,
            severity,
            f"{share:.1%} unique codes{where} at step {point.step} (threshold {self.unique:.0%}){reading.counts}",
            evidence,
        )


@dataclass(slots=True)
class SdrLowDiversityState:
    """What has been seen so far of one module."""

    reading: CodeReading = field(default_factory=CodeReading)
    streak: Streak = field(default_factory=Streak)
    best: float = 0.0
    """The largest share so far."""


@dataclass(frozen=True, slots=True)
class SdrLowDiversity(Detector):
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

    lowest: float = 0.3
    """Share of unique codes below which it is a collapse instead."""
    highest: float = 0.6
    """Share of unique codes above which there are enough."""
    fallen: float = 0.1
    """Minimum decrease below the best share."""
    rounds: int = 2
    """Number of measurements in a row."""
    fewest: int = 32
    """Minimum number of different inputs."""

    kind = "sdr_low_diversity"
    noun = "sparse codes that become alike"
    question = "Is the diversity of the codes falling?"
    check_by_hand = "Plot unique codes over inputs for the last 10 measurements; a steady fall ends in a collapse."
    order = 350
    quantities = QUANTITIES
    remedies = (
        Remedy(Action.RAISE_TEMPERATURE),
        Remedy(Action.SEPARATE_TOKENS),
        Remedy(Action.USE_MORE_BITS),
    )
    state_type = SdrLowDiversityState

    def step(self, state: SdrLowDiversityState, point: Point) -> tuple[SdrLowDiversityState, Event | None]:
        """Look at the next number of a module's codes; they are judged when the unique patterns are known."""
        reading = state.reading
        reading.take(point)
        if point.quantity != QUANTITIES[-1] or not point.finite or not reading.can_be_judged(self.fewest):
            return state, None
        share = reading.unique_share
        state.best = max(state.best, share)
        low = self.lowest <= share < self.highest and share <= state.best - self.fallen
        if not state.streak.reaches(self.rounds, bad=low):
            return state, None
        where = f" of {point.place}" if point.place else ""
        return state, finding(
            self,
            point,
            self.severities[-1],
            f"{share:.1%} unique codes{where} at step {point.step} (threshold {self.highest:.0%}), down from "
            f"{state.best:.1%}{reading.counts}",
            {"sdr_unique_ratio": share, "best": state.best},
        )
