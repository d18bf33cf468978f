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

import torch

from mlflow_stability.probes.block import Block
from mlflow_stability.probes.gate_view import GateView
from mlflow_stability.probes.layer_layout import whole_signals
from mlflow_stability.probes.probe import next_multiple
from mlflow_stability.probes.step_events import StepEvents, events_of
from mlflow_stability.probes.step_split import PARTS, StepSplit

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
        self._events_for = events_for
        self.split = StepSplit(now)
        """Who keeps the time on the host, and counts cycles."""
        self._told_at = 0
        self._cycles_told = 0
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

    def at_gate(self, view: GateView) -> None:
        """Runs when gradients are complete, in a cycle that is due: learn where the training takes place."""
        if self._device is None:
            self._device = next(
                (each.device for group in view.optimizer.param_groups for each in group["params"]), torch.device("cpu")
            )
            self._events = None if self._device.type == "cpu" else self._events_for(self._device)
            if self._events is not None:
                self.split.also = self._events.mark

    def after_step(self, _view: GateView) -> None:
        """Nothing to do."""

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
        cycles, self._cycles_told = self.split.cycles - self._cycles_told, self.split.cycles
        own = self._own_seconds()
        found = [_block((OWN,), ((own - self._own_before) / max(cycles, 1),))]
        self._own_before = own
        means = self.split.take()
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
