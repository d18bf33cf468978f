"""Measures how long the parts of a step take: waiting for data, forward, backward, the optimizer, and ourselves.

In: marks around forward and backward passes, gates and ends of steps. Out: every ten steps the mean of each part over
these ten. Promised: nobody waits for a device. On an accelerator one step of every ten is measured by the device's
own clock, between events in its stream; where it has none that tells time, the host's times have the place ``host``:
they say when work was handed out, not when it was done.

Communication has no part of its own: what of it is hidden behind the backward pass costs nothing, and what is not is in
`backward_time`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.nn import Module

from mlflow_stability.probes.block import Block
from mlflow_stability.probes.gate_view import GateView
from mlflow_stability.probes.layer_layout import whole_signals
from mlflow_stability.probes.step_events import StepEvents, events_of
from mlflow_stability.probes.step_split import PARTS, Mark, StepSplit

EVERY = 10
"""Every how many steps the parts are told."""
EVENTS_BEFORE = 2
"""How many steps before that one is measured with events: by then they have passed, as a rule."""
OWN = "own_time"


class StepClock:
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
        self._now = now
        self._events_for = events_for
        self._split = StepSplit()
        self._steps = 0
        """How many cycles there were since the parts were told."""
        self._told_at = 0
        self._sums: dict[str, tuple[float, int]] = {}
        """Seconds of each part, and in how many steps it was seen."""
        self._device: torch.device | None = None
        self._events: StepEvents | None = None

    def forward_began(self, _root: Module, _args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
        """Runs right before a forward pass of training."""
        self._mark(Mark.FORWARD_BEGAN)

    def forward_ended(self) -> None:
        """Runs right after it."""
        self._mark(Mark.FORWARD_ENDED)

    def forward_failed(self) -> None:
        """Nothing to do: the next forward pass begins afresh."""

    def evaluated(self) -> None:
        """Runs after a forward pass that is no part of training."""
        self._mark(Mark.EVALUATED)

    def backward_began(self) -> None:
        """Runs right before a backward pass."""
        self._mark(Mark.BACKWARD_BEGAN)

    def backward_ended(self) -> None:
        """Runs right after it."""
        self._mark(Mark.BACKWARD_ENDED)

    def due(self, _step: int) -> bool:
        """Every cycle is measured."""
        return True

    def at_gate(self, view: GateView) -> None:
        """Runs when gradients are complete."""
        self._mark(Mark.GATE)
        if self._device is None:
            self._device = next(
                (each.device for group in view.optimizer.param_groups for each in group["params"]), torch.device("cpu")
            )
            self._events = None if self._device.type == "cpu" else self._events_for(self._device)

    def after_step(self, _view: GateView) -> None:
        """Runs right after a step."""
        self._mark(Mark.STEP_ENDED)

    def blocks(self, step: int) -> Sequence[Block]:
        """The means, when it is time to tell them."""
        self._steps += 1
        events = self._events
        if events is not None:
            place = step % EVERY
            if place == EVERY - EVENTS_BEFORE - 1:
                events.begin()
            elif place == EVERY - EVENTS_BEFORE:
                events.end()
        self._add_up()
        if step % EVERY or step == self._told_at:
            return ()
        self._told_at = step
        steps, self._steps = self._steps, 0
        own = self._own_seconds()
        found = [_block((OWN,), ((own - self._own_before) / steps,))]
        self._own_before = own
        means = {name: seconds / times for name, (seconds, times) in self._sums.items()}
        self._sums.clear()
        if events is not None:
            found += _parts(events.take(), "")
        else:
            on_host = self._device is None or self._device.type == "cpu"
            found += _parts(means, "" if on_host else "host")
        return found

    def _add_up(self) -> None:
        for name, seconds in self._split.take().items():
            before, times = self._sums.get(name, (0.0, 0))
            self._sums[name] = before + seconds, times + 1

    def _mark(self, mark: Mark) -> None:
        if self._events is not None:
            self._events.mark(mark)
        self._split.mark(mark, self._now())


def _parts(seconds: Mapping[str, float], place: str) -> list[Block]:
    names = tuple([each for each in PARTS if each in seconds])
    return [_block(names, tuple([seconds[each] for each in names]), place)] if names else []


def _block(names: tuple[str, ...], values: tuple[float, ...], place: str = "") -> Block:
    return Block(whole_signals(names, place), values)
