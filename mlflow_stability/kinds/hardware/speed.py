"""Detect slow steps: their time, and samples or tokens a second."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mlflow_stability.detectors.detector import Point
from mlflow_stability.detectors.streak import LastingStreakDetector, Streak
from mlflow_stability.vocabulary.facts import SINCE, Facts, LastingFacts, RiseFacts
from mlflow_stability.vocabulary.result import Action, Remedy, Severity


@dataclass(frozen=True, slots=True)
class StepTimeFacts(LastingFacts, RiseFacts):
    """A step that takes longer than usual, in seconds."""

    kind: ClassVar[str] = "step_time_increase"
    metrics: ClassVar = {"step_time": "value", "level": "baseline"}

    def statement(self, step: int, unit: str, /) -> str:
        return (
            f"step time {self.value:.3g} s at {unit} {step}, {self.value / self.baseline:.3g} times the usual "
            f"{self.baseline:.3g} s (threshold {self.ratio:g} times)"
        )


@dataclass(frozen=True, slots=True)
class StepTimeIncrease(LastingStreakDetector):
    """Steps take {smallest_rise} times as long as usual.

    What it sees: {steps} steps in a row that each take more than {smallest_rise} times as long as usual. Single long
    steps (a checkpoint, a probe, an evaluation) and the first {baseline.MINIMUM} steps do not count. It is INFO at
    first, and a warning where it lasts another {lasting_steps} steps and {lasting_seconds} seconds. The finding
    ends when the time is back.

    Why it matters: the machine, the data or the network has become slower; the same result costs twice as much.

    What to try: profile the data loader; check the device clock and temperature; look for other processes on the
    machine; look for growing sequence lengths.

    When it is wrong: batches that grow on purpose; a phase with more work per step. On a shared machine it was found in
    10 of 117 healthy trainings as INFO.

    Reference: Jiang et al., MegaScale (arXiv:2402.15627)
    """

    smallest_rise: float = 2.0
    """Minimum ratio to the usual time."""
    steps: int = 10
    """Number of slow steps in a row."""

    kind = "step_time_increase"
    noun = "longer steps"
    question = "Did steps become slower?"
    check_by_hand = "Time 100 steps with torch.cuda.synchronize() before each reading of the clock."
    order = 260
    quantities = ("step_time",)
    compared = ("step_time",)
    in_a_row = "steps"
    severities = (Severity.INFO, Severity.WARNING)
    of_hardware = True
    remedies = (Remedy(Action.PROFILE_DATA_LOADER), Remedy(Action.CHECK_CLOCK), Remedy(Action.LOOK_FOR_OTHER_PROCESSES))

    def facts(self, _state: Streak, point: Point) -> Facts | None:
        slow = 0 < point.center * self.smallest_rise < point.value
        return StepTimeFacts(point.value, point.center, self.smallest_rise) if slow else None


@dataclass(frozen=True, slots=True)
class ThroughputFacts(LastingFacts, RiseFacts):
    """A throughput below its usual value, in tokens or samples a second."""

    kind: ClassVar[str] = "throughput_drop"

    signal: str  # What is counted: ``tokens_per_second`` or ``samples_per_second``

    def statement(self, step: int, unit: str, /) -> str:
        return (
            f"{self.signal} {self.value:.4g} at {unit} {step}, {self.value / self.baseline:.0%} of the usual "
            f"{self.baseline:.4g} (threshold {self.ratio:.0%})"
        )

    def numbers(self) -> dict[str, float]:
        since = {} if self.found_first is None else {SINCE: float(self.found_first)}
        return {self.signal: self.value, "level": self.baseline} | since


@dataclass(frozen=True, slots=True)
class ThroughputDrop(LastingStreakDetector):
    """The throughput fell below {share:percent} of its usual value.

    What it sees: {steps} measurements in a row below {share:percent} of the usual throughput. It is INFO at first, and
    a warning where it lasts another {lasting_steps} steps and {lasting_seconds} seconds. The finding ends when the
    throughput is back.

    Why it matters: the same result costs twice as much. A slow data source or a throttled device is the usual reason.

    What to try: profile the data loader; check the device clock and temperature; check the network.

    When it is wrong: batches that become smaller or shorter on purpose. On a shared machine it was found in 6 of 117
    healthy trainings as INFO.

    Reference: Jiang et al., MegaScale (arXiv:2402.15627)
    """

    share: float = 0.5
    """Share of the usual throughput below which it has dropped."""
    steps: int = 5
    """Number of low values in a row."""

    kind = "throughput_drop"
    noun = "a drop in throughput"
    plural = "drops in throughput"
    question = "Did the throughput fall?"
    check_by_hand = "Divide samples by seconds over 100 steps at the start and now; compare with a run that was fast."
    order = 250
    quantities = ("tokens_per_second", "samples_per_second")
    compared = ("tokens_per_second", "samples_per_second")
    in_a_row = "steps"
    severities = (Severity.INFO, Severity.WARNING)
    of_hardware = True
    remedies = (Remedy(Action.PROFILE_DATA_LOADER), Remedy(Action.CHECK_CLOCK), Remedy(Action.CHECK_NETWORK))

    def facts(self, _state: Streak, point: Point) -> Facts | None:
        low = point.center > 0 and point.value < point.center * self.share
        return ThroughputFacts(point.value, point.center, self.share, point.quantity) if low else None
