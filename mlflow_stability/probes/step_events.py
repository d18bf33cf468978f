"""Measures the parts of one step by the clock of the device that computes it.

In: marks, while a step is being measured. Out: seconds by part, once the device has passed the last of them. Promised:
an event is put into the stream at each mark and looked at later; nobody waits for it. A step in which a mark is
missing, or that the device has not passed in time, is not told.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch

from mlflow_stability.probes.step_split import Mark, StepSplit

MOST_MARKS = 256
"""A step of more micro-batches than that is not measured to its end."""


class Event(Protocol):
    """What torch's timing events can do."""

    def record(self) -> Any:
        """Put it into the current stream."""

    def query(self) -> bool:
        """Whether the device has passed it."""
        ...

    def elapsed_time(self, end_event: Any) -> float:
        """Milliseconds from this one to a later one."""
        ...


class StepEvents:
    """The events of the step that is being measured, or was measured last."""

    def __init__(self, new_event: Callable[[], Event]) -> None:
        self._new_event = new_event
        self._marks: list[tuple[int, Event]] = []
        self._is_on = False

    def begin(self) -> None:
        """A step is over: measure the next one, from here on."""
        self._marks = []
        self._is_on = True
        self.mark(Mark.STEP_ENDED)

    def mark(self, mark: int) -> None:
        """Put an event into the stream, while a step is being measured."""
        if self._is_on:
            event = self._new_event()
            event.record()
            self._marks.append((mark, event))
            self._is_on = len(self._marks) < MOST_MARKS

    def end(self) -> None:
        """The step is over."""
        self._is_on = False

    def take(self) -> dict[str, float]:
        """Seconds by part; empty where the device is not that far, or no step was measured."""
        marks, self._marks = self._marks, []
        if not marks or len(marks) == MOST_MARKS or not all(event.query() for _, event in reversed(marks)):
            return {}
        split = StepSplit()
        first = marks[0][1]
        for mark, event in marks:
            split.mark(mark, first.elapsed_time(event) / 1000)
        return split.take()


def events_of(device: torch.device) -> StepEvents | None:
    """Events that tell time on this device; None where there are none."""
    if device.type not in ("cuda", "xpu"):
        return None
    kind = torch.get_device_module(device).Event
    return StepEvents(lambda: kind(enable_timing=True))
