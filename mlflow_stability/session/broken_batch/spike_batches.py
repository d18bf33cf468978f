"""Keeps the batch of a loss spike: one whose loss is finite, so that its step is taken and no batch breaks.

In: the loss of each step, and what was found in it, up to 64 steps later. Out: the tensors of the batch in a file, and
an event that describes them. Guarantees: of the steps that wait to be judged, one batch is held: that of the highest
loss, by reference and within a budget; a step whose loss is no higher costs one comparison.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mlflow_stability.probes.probe import Guard
from mlflow_stability.recovery.nan_origin import CapturedBatch
from mlflow_stability.session.broken_batch.batch_report import PART, BatchReport
from mlflow_stability.vocabulary.measured import Signal
from mlflow_stability.vocabulary.result import Finding

SPIKES = frozenset({"loss_spike", "gradient_explosion"})
"""Findings whose batch is kept."""


def is_new_spike(event: Finding) -> bool:
    """Whether its batch is kept: not where a spike that was found before has become a warning."""
    return event.kind in SPIKES and event.facts.found_first is None


@dataclass(frozen=True, slots=True)
class _Held:
    """The batch of a step that was not judged yet, in passes."""

    step: int
    passes: tuple[CapturedBatch, ...]


class SpikeBatches:
    """The batch with the highest loss of the steps that wait to be judged."""

    def __init__(self, report: BatchReport, emit: Callable[[Finding], None], guard: Guard) -> None:
        self._report = report
        self._emit = emit
        self.first: Signal | None = None
        """The first signal of a step, where that is its loss."""
        self.highest = -math.inf
        """Losses above this one are looked at."""
        self._held: _Held | None = None
        self._found: tuple[_Held, Finding] | None = None
        """Found by whoever judges, which may be another thread; told at the next step."""
        self.see = guard(PART, self._seen)
        """Runs with a step whose loss is the highest so far, or whose first signal is another one."""

    def judged(self, step: int, events: Sequence[Finding]) -> None:
        """Runs when a step was judged."""
        held = self._held
        if held is None or step < held.step:
            return
        if step == held.step:
            spike = next((each for each in events if is_new_spike(each)), None)
            self._found = None if spike is None else (held, spike)
        self._held, self.highest = None, -math.inf

    def close(self) -> None:
        """Tell of what was found last, and hold nothing any more."""
        self._tell()
        self._held, self.highest = None, math.inf

    def _seen(self, step: int, signals: Sequence[Signal], values: Sequence[float]) -> None:
        self._tell()
        at = next((place for place, each in enumerate(signals) if each.quantity == "loss"), None)
        if at is None:
            return
        self.first = signals[0] if at == 0 else None
        if not self._report.keeps_spikes:
            self.highest = math.inf
        elif math.isfinite(values[at]) and values[at] > self.highest:
            self._held, self.highest = _Held(step, self._report.inputs_of_step()), values[at]

    def _tell(self) -> None:
        if self._found is not None:
            (held, spike), self._found = self._found, None
            self._report.keep_spike(spike, self._emit, held.passes)
