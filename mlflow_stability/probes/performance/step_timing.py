"""Times of the parts of a step: data loading, forward, backward, optimizer, and overhead of this package.

In: marks around forward and backward passes and optimizer steps. Out: every ten steps the mean of each part.
Guarantees: nothing waits for a device; a part is reported only where its beginning and end were both seen.

On an accelerator one step of ten is measured with events in the device's stream; where it has none, the host's times
have the place ``host``: when work was submitted, not when it was done. Data loading is the time from the end of a
step, or of a backward pass, to the next forward pass, without evaluation. Communication that is not hidden behind the
backward pass is in `backward_time`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import Any, Protocol

import torch

from mlflow_stability.probes.block import Block
from mlflow_stability.probes.parameters.layer_layout import whole_signals
from mlflow_stability.probes.probe import BaseProbe, StepView, next_multiple
from mlflow_stability.vocabulary.measured import SignalType

SIGNALS = (
    SignalType(
        "data_time",
        "time of a step that waited for data; the mean over these steps, as those below",
        "timing",
        exported="llm_data_seconds",
        unit="s",
    ),
    SignalType("forward_time", "time of a step in forward passes", "timing", exported="llm_forward_seconds", unit="s"),
    SignalType(
        "backward_time",
        "time of a step in backward passes; communication is part of where it happens",
        "timing",
        exported="llm_backward_seconds",
        unit="s",
    ),
    SignalType(
        "optimizer_time", "time of a step in the optimizer", "timing", exported="llm_optimizer_seconds", unit="s"
    ),
    SignalType("own_time", "time of a step in mlflow-stability", "timing", exported="llm_recording_seconds", unit="s"),
)


class Mark(IntEnum):
    """A moment of a step."""

    FORWARD_BEGAN = 0
    FORWARD_ENDED = 1
    BACKWARD_BEGAN = 2
    BACKWARD_ENDED = 3
    STEP_BEGAN = 4
    STEP_ENDED = 5
    EVALUATED = 6
    CAPTURE_ENDED = 7


DATA, FORWARD, BACKWARD, OPTIMIZER = "data_time", "forward_time", "backward_time", "optimizer_time"
PARTS = (DATA, FORWARD, BACKWARD, OPTIMIZER)

_ENDS: dict[tuple[Mark, Mark], int] = {
    (Mark.STEP_ENDED, Mark.FORWARD_BEGAN): 0,
    (Mark.BACKWARD_ENDED, Mark.FORWARD_BEGAN): 0,
    (Mark.EVALUATED, Mark.FORWARD_BEGAN): 0,
    (Mark.FORWARD_BEGAN, Mark.FORWARD_ENDED): 1,
    (Mark.BACKWARD_BEGAN, Mark.BACKWARD_ENDED): 2,
    (Mark.STEP_BEGAN, Mark.STEP_ENDED): 3,
}
"""Which part ends with a mark, by the mark that came right before it and that mark."""
_CAPTURE_ENDED = int(Mark.CAPTURE_ENDED)
_NONE, _NO_MOMENT = -1, -2


def _part(before: Mark, mark: Mark) -> int:
    # Where a closure is evaluated again, that is the optimizer's own time.
    again = before is Mark.STEP_BEGAN and mark not in (Mark.STEP_BEGAN, Mark.STEP_ENDED)
    return _NO_MOMENT if again or mark is Mark.CAPTURE_ENDED else _ENDS.get((before, mark), _NONE)


_PART = tuple([tuple([_part(before, mark) for mark in Mark]) for before in Mark])
"""The part that ends with a mark, as a table; `_NONE`: none does. `_NO_MOMENT`: the mark is no moment of its own."""
MOST_MOMENTS = 1024
"""Number of moments that wait until they are added up."""


class StepSplit:
    """The parts of one or several captures, as far as they were seen."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self.captures = 0
        """How many were over when moments were last added up."""
        self.also: Callable[[int], None] | None = None
        """Who takes the same moments down by another clock."""
        self.now = now
        self.moments: list[tuple[int, float]] = []
        """What hooks have taken down since moments were last added up. They append to it without a call of ours."""
        self._seconds = [0.0] * len(PARTS)
        self._times = [0] * len(PARTS)
        """In how many captures each part was seen."""
        self._seen = [-1] * len(PARTS)
        """The capture in which it was seen last."""
        self._last: int = Mark.EVALUATED
        self._when: float | None = None

    def mark(self, mark: int, when: float | None = None) -> None:
        """Take down a moment: this one, or another."""
        if self.also is not None:
            self.also(mark)
        self.moments.append((mark, self.now() if when is None else when))

    def add_up(self) -> None:
        """Add the moments so far to the parts that end with them."""
        moments, self.moments = self.moments, []
        last, when, captures = self._last, self._when, self.captures
        seconds, times, seen = self._seconds, self._times, self._seen
        for mark, moment in moments:
            part = _PART[last][mark]
            if part == _NO_MOMENT:
                captures += mark == _CAPTURE_ENDED
                continue
            if part >= 0 and when is not None:
                seconds[part] += moment - when
                if seen[part] != captures:
                    seen[part] = captures
                    times[part] += 1
            last, when = mark, moment
        self._last, self._when, self.captures = last, when, captures

    def take(self) -> dict[str, float]:
        """The mean of each part over the captures in which it was seen; the next ones begin at zero."""
        self.add_up()
        found = {
            name: seconds / times
            for name, seconds, times in zip(PARTS, self._seconds, self._times, strict=True)
            if times
        }
        self._seconds, self._times, self._seen = [0.0] * len(PARTS), [0] * len(PARTS), [-1] * len(PARTS)
        return found


ACCELERATED = ("cuda", "xpu")
"""The devices whose streams have events."""
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
    if device.type not in ACCELERATED:
        return None
    kind = torch.get_device_module(device).Event
    return StepEvents(lambda: kind(enable_timing=True))


EVERY = 10
"""Every how many steps the parts are told."""
EVENTS_BEFORE = 2
"""How many steps before that one is measured with events: by then they have passed, as a rule."""
OWN = "own_time"


class StepClock(BaseProbe):
    """The clock of one training."""

    part = "step times"

    def __init__(
        self,
        own_seconds: Callable[[], float],
        now: Callable[[], float] = time.perf_counter,
        events_for: Callable[[torch.device], StepEvents | None] = events_of,
    ) -> None:
        self._own_seconds = own_seconds
        self._own_before = own_seconds()
        self._events_for = events_for
        self.split = StepSplit(now)
        """Who keeps the time on the host, and counts captures."""
        self._told_at = 0
        self._captures_reported = 0
        self._device: torch.device | None = None
        self._events: StepEvents | None = None
        self.mark: Callable[[int], None] = self.split.mark
        """Runs at each moment of a step."""

    def due(self, step: int) -> bool:
        """Every ten steps; where a device keeps the time, in each."""
        return step % EVERY == 0 or self._device is None or self._events is not None

    def next_due(self, step: int) -> int:
        """The next step that may be due."""
        return step + 1 if self._device is None or self._events is not None else next_multiple(step, EVERY)

    def before_step(self, view: StepView) -> None:
        """Runs when gradients are complete, in a capture that is due: learn where the training takes place."""
        if self._device is None:
            self._device = next(
                (each.device for group in view.optimizer.param_groups for each in group["params"]), torch.device("cpu")
            )
            self._events = None if self._device.type == "cpu" else self._events_for(self._device)
            if self._events is not None:
                self.split.also = self._events.mark

    def blocks(self, step: int) -> Sequence[Block]:
        """The means, when it is time to tell them."""
        events = self._events
        if events is not None:
            place = step % EVERY
            if place == EVERY - EVENTS_BEFORE - 1:
                events.begin()
            elif place == EVERY - EVENTS_BEFORE:
                events.end()
        if step % EVERY or step == self._told_at:
            return ()
        self._told_at = step
        means = self.split.take()
        captures, self._captures_reported = self.split.captures - self._captures_reported, self.split.captures
        own = self._own_seconds()
        found = [_block((OWN,), ((own - self._own_before) / max(captures, 1),))]
        self._own_before = own
        if events is not None:
            found += _parts(events.take(), "")
        else:
            on_host = self._device is None or self._device.type == "cpu"
            found += _parts(means, "" if on_host else "host")
        return found


def _parts(seconds: Mapping[str, float], place: str) -> list[Block]:
    names = tuple([each for each in PARTS if each in seconds])
    return [_block(names, tuple([seconds[each] for each in names]), place)] if names else []


def _block(names: tuple[str, ...], values: tuple[float, ...], place: str = "") -> Block:
    return Block(whole_signals(names, place), values)
