"""Says when fewer samples or tokens go through."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mlflow_stability.detectors.detector import Point
from mlflow_stability.detectors.streak import LastingStreakDetector, Streak
from mlflow_stability.vocabulary.facts import SINCE, Facts, LastingFacts, RiseFacts
from mlflow_stability.vocabulary.result import Action, Remedy, Severity


@dataclass(frozen=True, slots=True)
class ThroughputFacts(LastingFacts, RiseFacts):
    """A throughput below its usual value, in tokens or samples a second."""

    kind: ClassVar[str] = "throughput_drop"

    signal: str
    """What is counted: ``tokens_per_second`` or ``samples_per_second``."""

    def statement(self, step: int, unit: str, /) -> str:
        """``samples_per_second 120 at step 400, 40% of the usual 300 (threshold 50%)``."""
        return (
            f"{self.signal} {self.value:.4g} at {unit} {step}, {self.value / self.baseline:.0%} of the usual "
            f"{self.baseline:.4g} (threshold {self.ratio:.0%})"
        )

    def numbers(self) -> dict[str, float]:
        """The throughput by the name of its signal, and its usual value."""
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
    remedies = (
        Remedy(Action.PROFILE_DATA_LOADER),
        Remedy(Action.CHECK_CLOCK),
        Remedy(Action.CHECK_NETWORK),
    )

    def facts(self, _state: Streak, point: Point) -> Facts | None:
        """Whether the throughput is too low."""
        low = point.center > 0 and point.value < point.center * self.share
        return ThroughputFacts(point.value, point.center, self.share, point.quantity) if low else None
