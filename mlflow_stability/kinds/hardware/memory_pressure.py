"""Says when the device's memory is nearly full."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mlflow_stability.detectors.detector import Point
from mlflow_stability.detectors.streak import LastingStreakDetector, Streak
from mlflow_stability.vocabulary.facts import Facts, LastingFacts, LimitFacts
from mlflow_stability.vocabulary.result import Action, Remedy, Severity


@dataclass(frozen=True, slots=True)
class MemoryPressureFacts(LastingFacts, LimitFacts):
    """A device memory that is nearly full, as the share in use."""

    kind: ClassVar[str] = "memory_pressure"
    metrics: ClassVar = {"memory_share": "value", "limit": "threshold"}

    def statement(self, step: int, unit: str, /) -> str:
        """``97% of the device memory in use at step 400 (threshold 95%)``."""
        return f"{self.value:.0%} of the device memory in use at {unit} {step} (threshold {self.threshold:.0%})"


@dataclass(frozen=True, slots=True)
class MemoryPressure(LastingStreakDetector):
    """The device memory is nearly full.

    What it sees: more than {highest:percent} of the device memory in use, {steps} times in a row. It is INFO at first,
    and a warning where it lasts another {lasting_steps} steps and {lasting_seconds} seconds. The finding ends when
    it is less.

    Why it matters: the next longer batch ends the training; before that, the allocator slows it down.

    What to try: use a smaller batch with gradient accumulation; use activation checkpointing; set
    `expandable_segments:True`.

    When it is wrong: frameworks that reserve all memory in advance. Its false-alarm rate is not measured: it depends on
    the device and on the allocator.

    Reference: https://docs.pytorch.org/docs/stable/notes/cuda.html#memory-management
    """

    highest: float = 0.95
    """Share of the memory above which it is nearly full."""
    steps: int = 3
    """Number of high values in a row."""

    kind = "memory_pressure"
    noun = "memory pressure"
    question = "Is memory nearly full?"
    check_by_hand = (
        "Compare torch.cuda.max_memory_reserved() with the device's memory; "
        "above {highest:percent} the allocator retries."
    )
    order = 270
    quantities = ("memory_share",)
    in_a_row = "steps"
    severities = (Severity.INFO, Severity.WARNING)
    of_hardware = True
    remedies = (
        Remedy(Action.ACCUMULATE_GRADIENTS),
        Remedy(Action.USE_ACTIVATION_CHECKPOINTING),
        Remedy(Action.SET_EXPANDABLE_SEGMENTS),
    )

    def facts(self, _state: Streak, point: Point) -> Facts | None:
        """Whether the memory is nearly full."""
        high = point.value > self.highest
        return MemoryPressureFacts(point.value, self.highest, in_a_row=self.steps) if high else None
