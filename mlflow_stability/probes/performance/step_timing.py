"""Times of the parts of a step: data loading, forward, backward, optimizer, exchanges, overhead of this package.

Guarantees: nothing waits for a device; a part is reported only where its beginning and end were both seen. On an
accelerator one step of ten is measured with events in the device's stream; where it has none, the host's times have the
place ``host``: when work was submitted, not when it was done. Data loading is the time from the end of a step, or of a
backward pass, to the next forward pass, without evaluation.

Of exchanges between ranks, `communication_time` is from the first to the last one under DDP, which times them itself,
and the sum of all collectives under FSDP, in one step of a hundred; `communication_exposed_time` is the part of it that
no computation hides. A script's own collectives are not measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.parallel import DistributedDataParallel

from mlflow_stability.probes.hooks import torch_api
from mlflow_stability.probes.probe import Guard, Probe, StepView, next_multiple
from mlflow_stability.probes.step.readback import Block, signals_at
from mlflow_stability.vocabulary.measured.signal_type import SignalType, signals

SIGNALS = signals(
    SignalType(
        "data_time",
        "time of a step that waited for data; the mean over these steps, as those below",
        exported="llm_data_seconds",
    ),
    SignalType("forward_time", "time of a step in forward passes", exported="llm_forward_seconds"),
    SignalType(
        "backward_time",
        "time of a step in backward passes; communication is part of where it happens",
        exported="llm_backward_seconds",
    ),
    SignalType("optimizer_time", "time of a step in the optimizer", exported="llm_optimizer_seconds"),
    SignalType("own_time", "time of a step in mlflow-stability", exported="llm_recording_seconds"),
    SignalType("communication_time", "time of a step in exchanges between ranks, under DDP and FSDP; every 100 steps"),
    SignalType("communication_exposed_time", "how much of it no computation hides, under DDP; every 100 steps"),
    topic="timing",
    unit="s",
)


class Mark(IntEnum):
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

# The part that ends with a mark, by the mark before it and that mark.
_ENDS: dict[tuple[Mark, Mark], int] = {
    (Mark.STEP_ENDED, Mark.FORWARD_BEGAN): 0,
    (Mark.BACKWARD_ENDED, Mark.FORWARD_BEGAN): 0,
    (Mark.EVALUATED, Mark.FORWARD_BEGAN): 0,
    (Mark.FORWARD_BEGAN, Mark.FORWARD_ENDED): 1,
    (Mark.BACKWARD_BEGAN, Mark.BACKWARD_ENDED): 2,
    (Mark.STEP_BEGAN, Mark.STEP_ENDED): 3,
}
_CAPTURE_ENDED = int(Mark.CAPTURE_ENDED)
_NONE, _NO_MOMENT = -1, -2


def _part(before: Mark, mark: Mark) -> int:
    # Where a closure is evaluated again, that is the optimizer's own time.
    again = before is Mark.STEP_BEGAN and mark not in (Mark.STEP_BEGAN, Mark.STEP_ENDED)
    return _NO_MOMENT if again or mark is Mark.CAPTURE_ENDED else _ENDS.get((before, mark), _NONE)


# The same as a table. `_NONE`: no part ends; `_NO_MOMENT`: the mark is not a moment of its own.
_PART = tuple([tuple([_part(before, mark) for mark in Mark]) for before in Mark])
MOST_MOMENTS = 1024  # moments that wait until they are added up


class StepSplit:
    """The parts of one or several captures, as far as they were seen."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self.captures = 0  # captures that were over when moments were last added up
        self.also: Callable[[int], None] | None = None  # records the same moments by another clock
        self.now = now
        # Hooks append to it without a call of ours.
        self.moments: list[tuple[int, float]] = []
        self._seconds = [0.0] * len(PARTS)
        self._times = [0] * len(PARTS)  # captures in which each part was seen
        self._seen = [-1] * len(PARTS)  # last capture in which it was seen
        self._last: int = Mark.EVALUATED
        self._when: float | None = None

    def mark(self, mark: int, when: float | None = None) -> None:
        if self.also is not None:
            self.also(mark)
        self.moments.append((mark, self.now() if when is None else when))

    def add_up(self) -> None:
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
        """Return the mean of each part over the captures in which it was seen, and begin at zero."""
        self.add_up()
        columns = zip(PARTS, self._seconds, self._times, strict=True)
        means = {name: seconds / times for name, seconds, times in columns if times}
        self._seconds, self._times, self._seen = [0.0] * len(PARTS), [0] * len(PARTS), [-1] * len(PARTS)
        return means


ACCELERATED = ("cuda", "xpu")  # devices whose streams have events
MAX_MARKS = 256  # a step of more micro-batches is not measured


class StepEvents:
    def __init__(self, new_event: Callable[[], Any]) -> None:
        self._new_event = new_event  # makes an event of torch
        self._marks: list[tuple[int, Any]] = []
        self._is_on = False

    def begin(self) -> None:
        """Measure the next step: the one before has just ended."""
        self._marks = []
        self._is_on = True
        self.mark(Mark.STEP_ENDED)

    def mark(self, mark: int) -> None:
        if self._is_on:
            event = self._new_event()
            event.record()
            self._marks.append((mark, event))
            self._is_on = len(self._marks) < MAX_MARKS

    def end(self) -> None:
        self._is_on = False

    def take(self) -> dict[str, float]:
        """Return seconds by part, or nothing if no step was measured or the device has not passed the last event."""
        marks, self._marks = self._marks, []
        if not marks or len(marks) == MAX_MARKS or not all(event.query() for _, event in reversed(marks)):
            return {}
        split = StepSplit()
        first = marks[0][1]
        for mark, event in marks:
            split.mark(mark, first.elapsed_time(event) / 1000)
        return split.take()


def events_of(device: torch.device) -> StepEvents | None:
    """Return events of this device, or None if it has none."""
    if device.type not in ACCELERATED:
        return None
    kind = torch.get_device_module(device).Event
    return StepEvents(lambda: kind(enable_timing=True))


EVERY_STEPS = 10
EVENT_STEP = EVERY_STEPS - 2  # of each ten; the device has usually passed it when times are reported
OWN = "own_time"


class StepClock(Probe):
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
        self.split = StepSplit(now)  # by the host's clock
        self._reported_at = 0
        self._captures_reported = 0
        self._device: torch.device | None = None
        self._events: StepEvents | None = None
        self.mark: Callable[[int], None] = self.split.mark

    def due(self, step: int) -> bool:
        return step % EVERY_STEPS == 0 or self._device is None or self._events is not None

    def next_due(self, step: int) -> int:
        return step + 1 if self._device is None or self._events is not None else next_multiple(step, EVERY_STEPS)

    def before_step(self, view: StepView) -> None:
        if self._device is None:
            self._device = next(
                (held.device for group in view.optimizer.param_groups for held in group["params"]), torch.device("cpu")
            )
            self._events = None if self._device.type == "cpu" else self._events_for(self._device)
            if self._events is not None:
                self.split.also = self._events.mark

    def blocks(self, step: int) -> Sequence[Block]:
        events = self._events
        if events is not None:
            turn = step % EVERY_STEPS
            if turn == EVENT_STEP - 1:
                events.begin()
            elif turn == EVENT_STEP:
                events.end()
        if step % EVERY_STEPS or step == self._reported_at:
            return ()
        self._reported_at = step
        means = self.split.take()
        captures, self._captures_reported = self.split.captures - self._captures_reported, self.split.captures
        own = self._own_seconds()
        own_mean, self._own_before = (own - self._own_before) / max(captures, 1), own
        blocks = [Block(signals_at((OWN,), ""), (own_mean,))]
        place = ""
        if events is not None:
            means = events.take()
        elif self._device is not None and self._device.type != "cpu":
            place = "host"
        names = tuple([name for name in PARTS if name in means])
        if names:
            blocks.append(Block(signals_at(names, place), tuple([means[name] for name in names])))
        return blocks


COMMUNICATION_EVERY = 100
TIMED_STEP = COMMUNICATION_EVERY - 2  # of each hundred; an accelerator has usually passed it when the time is reported
# DDP renews its timers every hundred steps, at an unknown one of them.
REPORTED_STEPS = (COMMUNICATION_EVERY // 2, COMMUNICATION_EVERY)
WHOLE, EXPOSED = QUANTITIES = ("communication_time", "communication_exposed_time")
_METHODS = ("fsdp_all_gather", "fsdp_reduce_scatter")  # collectives of FSDP2
_MODULES = ("fsdp1_gathers", "fsdp1_reductions")  # names by which modules of FSDP1 know torch.distributed
_NAMES = ("all_gather", "reduce_scatter", "all_reduce")  # beginnings of the names of collectives in it
MAX_TIMED = 4096  # collectives of a step


class CollectiveTimer:
    """Timer of the collectives of FSDP between `begin` and `end`."""

    def __init__(self, guard: Guard, part: str) -> None:
        self._mark: Callable[[tuple[Any, ...]], Any] = guard(part, _moment)
        self._spans: list[tuple[Any, Any]] = []
        self._replaced: list[tuple[Any, str, Any]] = []

    def begin(self) -> None:
        self.end()
        self._spans.clear()
        for name in (*_METHODS, *_MODULES):
            place = torch_api.owner_of(name)
            if place is not None:
                owner, attribute = place
                original = getattr(owner, attribute)
                self._replaced.append((owner, attribute, original))
                timed = _TimedModule(original, self._timed) if name in _MODULES else self._timed(original)
                setattr(owner, attribute, timed)

    def end(self) -> None:
        while self._replaced:
            owner, name, original = self._replaced.pop()
            setattr(owner, name, original)

    def take(self) -> float | None:
        """Return the sum in seconds, or None if nothing was timed or the device has not passed the last event."""
        spans, self._spans = self._spans, []
        if not spans or any(None in span for span in spans):
            return None
        if isinstance(spans[0][0], float):
            return float(sum(after - before for before, after in spans))
        if not all(after.query() for _, after in reversed(spans)):
            return None
        return float(sum(before.elapsed_time(after) for before, after in spans)) / 1000

    def _timed(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def collective(*args: Any, **kwargs: Any) -> Any:
            inputs = (*args, *kwargs.values())
            before = self._mark(inputs)
            work = original(*args, **kwargs)
            if work is None and len(self._spans) < MAX_TIMED:  # an asynchronous one returns a handle
                self._spans.append((before, self._mark(inputs)))
            return work

        return collective


class _TimedModule:
    """`torch.distributed` as another module sees it, with its collectives timed."""

    def __init__(self, module: Any, timed: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        self._module = module
        self._timed = timed

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._module, name)
        return self._timed(value) if name.startswith(_NAMES) and callable(value) else value


def _moment(inputs: tuple[Any, ...]) -> Any:
    """Return a recorded event of the device of these tensors, or the host's time."""
    device = next((value.device for value in inputs if isinstance(value, Tensor)), None)
    if device is None or device.type not in ACCELERATED:
        return time.perf_counter()
    event = torch.get_device_module(device).Event(enable_timing=True)
    event.record()
    return event


class Communication(Probe):
    part = "communication time"

    def __init__(self, guard: Guard, models: Callable[[], Sequence[Module]]) -> None:
        self._models = models
        self._timer = CollectiveTimer(guard, self.part)
        self._reported: dict[int, int] = {}  # by model, the step of DDP's timers that was reported last

    def due(self, step: int) -> bool:
        return step % COMMUNICATION_EVERY in (TIMED_STEP - 1, TIMED_STEP, *REPORTED_STEPS, 0)

    def next_due(self, step: int) -> int:
        place = step % COMMUNICATION_EVERY
        return step - place + min(due for due in (TIMED_STEP - 1, TIMED_STEP, *REPORTED_STEPS) if due > place)

    def forget(self) -> None:
        self._timer.end()

    def blocks(self, step: int) -> Sequence[Block]:
        place = step % COMMUNICATION_EVERY
        self._timer.end()
        if place == TIMED_STEP - 1 and any(map(_is_sharded, self._models())) and not torch_api.has_compiled():
            self._timer.begin()
        if place not in (*REPORTED_STEPS, 0):
            return ()
        times = dict(zip(QUANTITIES, self._new_times_of_ddp(), strict=False))
        seconds = self._timer.take() if place == 0 else None
        if seconds is not None:
            times[WHOLE] = times.get(WHOLE, 0.0) + seconds
        return (Block(signals_at(tuple(times), ""), tuple(times.values())),) if times else ()

    def _new_times_of_ddp(self) -> tuple[float, ...]:
        """Return the sum over all models whose timers were renewed since the last call."""
        wrapped = [model for model in self._models() if isinstance(model, DistributedDataParallel)]
        times = [pair for number, model in enumerate(wrapped) if (pair := self._read_timers(number, model))]
        return tuple(map(sum, zip(*times, strict=True)))

    def _read_timers(self, number: int, model: DistributedDataParallel) -> tuple[float, float] | None:
        timers = torch_api.ddp_logging_data(model)
        whole, step = timers.get("backward_comm_time", 0), timers.get("iteration", -1)
        if not whole or self._reported.get(number) == step:
            return None
        self._reported[number] = step
        hidden = min(timers.get("backward_compute_comm_overlap_time", 0), whole)
        return whole / 1e9, (whole - hidden) / 1e9  # nanoseconds


def _is_sharded(model: Module) -> bool:
    return any(
        kind.__name__ in ("FSDPModule", "FullyShardedDataParallel")
        for module in model.modules()
        for kind in type(module).__mro__
    )
