"""Says when different inputs get the same sparse code.

Says when sparse codes become more alike.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from mlflow_stability.detectors.code_reading import QUANTITIES, CodeCounts, CodeReading
from mlflow_stability.detectors.detector import Detector, Point
from mlflow_stability.detectors.episodes import EpisodeFilter
from mlflow_stability.detectors.finding_type import Symptom
from mlflow_stability.detectors.streak import Streak, StreakDetector
from mlflow_stability.vocabulary.facts import Facts, LimitFacts
from mlflow_stability.vocabulary.result import RAISE_TEMPERATURE_2_TO_3, Action, Remedy
from mlflow_stability.vocabulary.result.finding import Finding
from mlflow_stability.vocabulary.result.severity import Severity


@dataclass(frozen=True, slots=True)
class SdrCollapseFacts(LimitFacts):
    """Sparse codes of which few are unique, as a share of the different inputs."""

    kind: ClassVar[str] = "sdr_collapse"
    metrics: ClassVar = {"sdr_unique_ratio": "value", "limit": "threshold", "active_bits": "codes.active_bits"}

    codes: CodeCounts
    """The codes of the batch."""

    def sentence(self, step: int, unit: str = "step", /) -> str:
        """``12.5% unique codes of codes at step 400 (threshold 30%): 8 codes for 64 different inputs. …``."""
        where = f" of {self.place}" if self.place else ""
        return f"{self.value:.1%} unique codes{where} at {unit} {step} (threshold {self.threshold:.0%}){self.codes}"


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
    severities = (Severity.WARNING, Severity.CRITICAL)
    remedies = (
        RAISE_TEMPERATURE_2_TO_3,
        Remedy(Action.SEPARATE_TOKENS),
        Remedy(Action.USE_MORE_BITS),
    )
    state_type = SdrCollapseState

    def step(self, state: SdrCollapseState, point: Point) -> tuple[SdrCollapseState, Finding | None]:
        """Look at the next number of a module's codes; they are judged when the unique patterns are known."""
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

    sdr_unique_ratio: float
    """Number of unique codes, as a share of the different inputs."""
    best: float
    """The largest such share so far."""
    threshold: float
    """The share above which there are enough."""
    codes: CodeCounts
    """The codes of the batch."""
    place: str
    """The module."""

    def sentence(self, step: int, unit: str = "step", /) -> str:
        """``45.0% unique codes of codes at step 400 (threshold 60%), down from 90.0%: 29 codes for 64 …``."""
        where = f" of {self.place}" if self.place else ""
        return (
            f"{self.sdr_unique_ratio:.1%} unique codes{where} at {unit} {step} (threshold {self.threshold:.0%}), down "
            f"from {self.best:.1%}{self.codes}"
        )


@dataclass(slots=True)
class SdrLowDiversityState(Streak):
    """What has been seen so far of one module."""

    reading: CodeReading = field(default_factory=CodeReading)
    best: float = 0.0
    """The largest share so far."""


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
    in_a_row = "rounds"
    remedies = (
        Remedy(Action.RAISE_TEMPERATURE),
        Remedy(Action.SEPARATE_TOKENS),
        Remedy(Action.USE_MORE_BITS),
    )
    state_type = SdrLowDiversityState

    def takes(self, state: SdrLowDiversityState, point: Point) -> bool:
        """Take a number of a module's codes in; they are judged when the unique patterns are known."""
        return state.reading.is_complete(point, self.fewest)

    def facts(self, state: SdrLowDiversityState, point: Point) -> Facts | None:
        """Whether fewer codes are unique than before."""
        share = state.reading.unique_share
        state.best = max(state.best, share)
        if not (self.lowest <= share < self.highest and share <= state.best - self.fallen):
            return None
        return SdrLowDiversityFacts(share, state.best, self.highest, state.reading.counts, point.place)
