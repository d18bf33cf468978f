"""Measures how long the processes of a training exchange parameters and gradients, under DDP, FSDP2 and FSDP1.

In: the models that train. Out: seconds of a step. Guarantees: nothing is waited for. DistributedDataParallel times its
exchange by itself, in its first ten steps and in each hundredth one: its numbers are read. The collectives of FSDP are
timed in one step of a hundred: on an accelerator by events in the stream that they are in, elsewhere by the clock. Of
a script's own collectives nothing is told, and their time is part of forward and backward passes.

`communication_time` is from the first to the last exchange under DDP, and the sum of all collectives under FSDP;
`communication_exposed_time` is what of the former no computation hides.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.parallel import DistributedDataParallel

from mlflow_stability.probes.block import Block
from mlflow_stability.probes.hooks import torch_api
from mlflow_stability.probes.parameters.layer_layout import whole_signals
from mlflow_stability.probes.performance.step_timing import ACCELERATED
from mlflow_stability.probes.probe import BaseProbe, Guard
from mlflow_stability.vocabulary.measured import SignalType

SIGNALS = (
    SignalType(
        "communication_time",
        "time of a step in exchanges between ranks, under DDP and FSDP; every 100 steps",
        "timing",
        unit="s",
    ),
    SignalType(
        "communication_exposed_time",
        "how much of it no computation hides, under DDP; every 100 steps",
        "timing",
        unit="s",
    ),
)

EVERY = 100
"""Every how many steps collectives are timed, ..."""
TIMED = EVERY - 2
"""... and which step of them: when they are told, an accelerator has passed it, as a rule."""
TOLD = (EVERY // 2, EVERY)
"""When DDP's timers are read: they are renewed every hundred steps, at one that is not known."""
WHOLE, EXPOSED = QUANTITIES = ("communication_time", "communication_exposed_time")
_SECONDS = 1e-9
"""Of a nanosecond."""
_COLLECTIVES = ("fsdp_all_gather", "fsdp_reduce_scatter")
"""Of FSDP2: methods."""
_MODULES = ("fsdp1_gathers", "fsdp1_reductions")
"""Of FSDP1: what its own modules know torch.distributed by."""
_NAMES = ("all_gather", "reduce_scatter", "all_reduce")
"""What the names of collectives begin with there."""
MOST_TIMED = 4096
"""So many collectives of a step are timed."""


class CollectiveTimer:
    """Times the collectives of FSDP from `begin` to `end`."""

    def __init__(self, guard: Guard, part: str) -> None:
        self._mark: Callable[[tuple[Any, ...]], Any] = guard(part, _moment)
        self._spans: list[tuple[Any, Any]] = []
        self._replaced: list[tuple[Any, str, Any]] = []

    def begin(self) -> None:
        """Time all collectives from now on."""
        self.end()
        self._spans.clear()
        for name in (*_COLLECTIVES, *_MODULES):
            found = torch_api.owner_of(name)
            if found is not None:
                owner, attribute = found
                original = getattr(owner, attribute)
                self._replaced.append((owner, attribute, original))
                timed = _TimedModule(original, self._timed) if name in _MODULES else self._timed(original)
                setattr(owner, attribute, timed)

    def end(self) -> None:
        """Leave torch as it was."""
        while self._replaced:
            owner, name, original = self._replaced.pop()
            setattr(owner, name, original)

    def take(self) -> float | None:
        """Seconds of all that were timed; None where there were none, or the device is not that far."""
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
            given = (*args, *kwargs.values())
            before = self._mark(given)
            work = original(*args, **kwargs)
            if work is None and len(self._spans) < MOST_TIMED:  # else it has only been submitted
                self._spans.append((before, self._mark(given)))
            return work

        return collective


class _TimedModule:
    """torch.distributed as one other module sees it, with its collectives timed."""

    def __init__(self, module: Any, timed: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        self._module = module
        self._timed = timed

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._module, name)
        return self._timed(found) if name.startswith(_NAMES) and callable(found) else found


def _moment(given: tuple[Any, ...]) -> Any:
    """The moment at which the device of these tensors, or the host, is here."""
    device = next((each.device for each in given if isinstance(each, Tensor)), None)
    if device is None or device.type not in ACCELERATED:
        return time.perf_counter()
    event = torch.get_device_module(device).Event(enable_timing=True)
    event.record()
    return event


class Communication(BaseProbe):
    """The communication of one training."""

    part = "communication time"

    def __init__(self, guard: Guard, models: Callable[[], Sequence[Module]]) -> None:
        self._models = models
        self._timer = CollectiveTimer(guard, self.part)
        self._told: dict[str, int] = {}
        """By model, the step of DDP's timers that was told last."""

    def due(self, step: int) -> bool:
        """Whether something is begun, ended or told after this step."""
        return step % EVERY in (TIMED - 1, TIMED, *TOLD, 0)

    def next_due(self, step: int) -> int:
        """The next of these steps."""
        place = step % EVERY
        return step - place + min(each for each in (TIMED - 1, TIMED, *TOLD) if each > place)

    def forget(self) -> None:
        """The capture was interrupted: nothing is timed any more."""
        self._timer.end()

    def blocks(self, step: int) -> Sequence[Block]:
        """What was measured; the step is over."""
        place = step % EVERY
        self._timer.end()
        if place == TIMED - 1 and any(map(_is_sharded, self._models())) and not torch_api.has_compiled():
            self._timer.begin()
        if place not in (*TOLD, 0):
            return ()
        found = dict(zip(QUANTITIES, self._by_ddp(), strict=False))
        seconds = self._timer.take() if place == 0 else None
        if seconds is not None:
            found[WHOLE] = found.get(WHOLE, 0.0) + seconds
        return (Block(whole_signals(tuple(found), ""), tuple(found.values())),) if found else ()

    def _by_ddp(self) -> tuple[float, ...]:
        """What DDP's timers say that they did not say before; of several models the sum."""
        wrapped = [each for each in self._models() if isinstance(each, DistributedDataParallel)]
        found = [numbers for number, each in enumerate(wrapped) if (numbers := self._read(str(number), each))]
        return tuple(sum(each) for each in zip(*found, strict=True))

    def _read(self, name: str, model: DistributedDataParallel) -> tuple[float, float] | None:
        said = torch_api.ddp_logging_data(model)
        whole, at = said.get("backward_comm_time", 0), said.get("iteration", -1)
        if not whole or self._told.get(name) == at:
            return None
        self._told[name] = at
        hidden = min(said.get("backward_compute_comm_overlap_time", 0), whole)
        return whole * _SECONDS, (whole - hidden) * _SECONDS


def _is_sharded(model: Module) -> bool:
    """Whether a module in it was given to `fully_shard` or `FullyShardedDataParallel`."""
    return any(
        kind.__name__ in ("FSDPModule", "FullyShardedDataParallel")
        for each in model.modules()
        for kind in type(each).__mro__
    )
