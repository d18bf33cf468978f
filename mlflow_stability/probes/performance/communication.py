"""Time that the processes of a training spend exchanging parameters and gradients, under DDP, FSDP2 and FSDP1.

DistributedDataParallel times its exchange itself, in its first ten steps and in each hundredth one: its numbers are
read. The collectives of FSDP are timed in one step of a hundred: on an accelerator by events in their stream,
elsewhere by the clock. A script's own collectives are not measured.

`communication_time` is from the first to the last exchange under DDP, and the sum of all collectives under FSDP;
`communication_exposed_time` is the part of it that no computation hides. Guarantees: no device is waited for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.parallel import DistributedDataParallel

from mlflow_stability.probes.block import Block, signals_at
from mlflow_stability.probes.hooks import torch_api
from mlflow_stability.probes.performance.step_timing import ACCELERATED
from mlflow_stability.probes.probe import BaseProbe, Guard
from mlflow_stability.vocabulary.measured.signal_type import SignalType, signals

SIGNALS = signals(
    SignalType("communication_time", "time of a step in exchanges between ranks, under DDP and FSDP; every 100 steps"),
    SignalType("communication_exposed_time", "how much of it no computation hides, under DDP; every 100 steps"),
    topic="timing",
    unit="s",
)

EVERY_STEPS = 100
TIMED_STEP = EVERY_STEPS - 2  # of each hundred; an accelerator has usually passed it when the time is reported
# DDP renews its timers every hundred steps, at an unknown one of them.
REPORTED_STEPS = (EVERY_STEPS // 2, EVERY_STEPS)
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


class Communication(BaseProbe):
    part = "communication time"

    def __init__(self, guard: Guard, models: Callable[[], Sequence[Module]]) -> None:
        self._models = models
        self._timer = CollectiveTimer(guard, self.part)
        self._reported: dict[int, int] = {}  # by model, the step of DDP's timers that was reported last

    def due(self, step: int) -> bool:
        return step % EVERY_STEPS in (TIMED_STEP - 1, TIMED_STEP, *REPORTED_STEPS, 0)

    def next_due(self, step: int) -> int:
        place = step % EVERY_STEPS
        return step - place + min(due for due in (TIMED_STEP - 1, TIMED_STEP, *REPORTED_STEPS) if due > place)

    def forget(self) -> None:
        self._timer.end()

    def blocks(self, step: int) -> Sequence[Block]:
        place = step % EVERY_STEPS
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
