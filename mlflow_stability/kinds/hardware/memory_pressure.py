"""Says when the device's memory is nearly full."""

from __future__ import annotations

from dataclasses import dataclass

from mlflow_stability.detectors.debounce import Streak
from mlflow_stability.detectors.detector import Detector, Point
from mlflow_stability.detectors.finding import finding
from mlflow_stability.vocabulary.result import Action, Remedy
from mlflow_stability.vocabulary.result.event import Event, Severity


@dataclass(frozen=True, slots=True)
class MemoryPressure(Detector):
    """The device memory is nearly full.

    What it sees: more than {highest:percent} of the device memory in use, {steps} times in a row. The finding ends when
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
    judged = "memory_share"
    severities = (Severity.INFO,)
    experimental = True
    remedies = (
        Remedy(Action.ACCUMULATE_GRADIENTS),
        Remedy(Action.USE_ACTIVATION_CHECKPOINTING),
        Remedy(Action.SET_EXPANDABLE_SEGMENTS),
    )
    state_type = Streak

    def step(self, state: Streak, point: Point) -> tuple[Streak, Event | None]:
        """Look at the next share."""
        if not point.finite:
            return state, None
        bad = point.value > self.highest
        if not state.reaches(self.steps, bad=bad):
            return state, None
        return state, finding(
            self,
            point,
            Severity.INFO,
            f"{point.value:.0%} of the device memory in use at step {point.step} (threshold {self.highest:.0%}).",
            {"memory_share": point.value, "limit": self.highest},
        )
