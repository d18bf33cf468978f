"""What is known of a run at the moment: its curves, its findings, its rollbacks, its pace.

In: the records of a recording, in order. Out: what a view shows. Guarantees: memory is bounded for a run of any length.
"""

from __future__ import annotations

import math
import time
from collections import deque
from dataclasses import replace

from mlflow_stability.figures.run_page import Curve, CurveSketch
from mlflow_stability.journal.record import Record
from mlflow_stability.vocabulary.measured import Signal, StepReading
from mlflow_stability.vocabulary.result import Finding, Span
from mlflow_stability.vocabulary.run import Closing, Reset, Returned

CURVES = ("loss", "grad_norm")
QUANTITIES = (*CURVES, "learning_rate", "update_ratio", "eta_seconds", "skipped_steps")
"""What is shown of a run, all of the whole model."""
NEIGHBOURS = 16
"""Steps between two events of one kind that are told as one."""
MOST_EPISODES = 200
PACE_OF = 100
"""Readings that the pace is taken from: the newest."""


class WatchedRun:
    """One run as far as it has come."""

    def __init__(self, name: str = "", run_id: str | None = None) -> None:
        self.name = name
        self.run_id = run_id
        self.ended = ""
        """How it ended; empty while it trains."""
        self.last_step = 0
        self.last_time = 0.0
        self.attempt = 0
        self.latest: dict[str, tuple[float, float]] = {}
        """The newest value of each quantity, and when it was measured."""
        self.best_loss: tuple[float, int] | None = None
        self.findings: deque[Finding] = deque(maxlen=MOST_EPISODES)
        self.rollbacks: list[Finding] = []
        self._curves = {quantity: CurveSketch(Signal(quantity)) for quantity in CURVES}
        self._pace: deque[tuple[float, int]] = deque(maxlen=PACE_OF)

    def hear(self, record: Record, offset: int = 0) -> None:
        """Take a record in; `offset`: what the run adds to its steps."""
        if isinstance(record, StepReading):
            self._hear_step(record, record.step + offset)
        elif isinstance(record, Finding):
            self._hear_event(record, offset)
        elif isinstance(record, Reset):
            self.attempt = record.attempt
        elif isinstance(record, Closing | Returned):
            self.ended = record.outcome.replace("_", " ")

    def curve(self, quantity: str) -> Curve:
        """A quantity over the steps."""
        return self._curves[quantity].curve()

    def value(self, quantity: str) -> float | None:
        """The newest value of a quantity; None where it is not measured."""
        found = self.latest.get(quantity)
        return None if found is None else found[0]

    @property
    def steps_per_second(self) -> float | None:
        """How fast it trains, by its newest steps; None where that cannot be told yet."""
        if len(self._pace) < 2:
            return None
        (began, first), (ended, last) = self._pace[0], self._pace[-1]
        return (last - first) / (ended - began) if ended > began and last > first else None

    def seconds_left(self, now: float | None = None) -> float | None:
        """How long it still takes, where the training knows how many steps it makes."""
        found = self.latest.get("eta_seconds")
        if found is None:
            return None
        seconds, measured = found
        return max(0.0, seconds - ((time.time() if now is None else now) - measured))

    def _hear_step(self, reading: StepReading, step: int) -> None:
        self.ended = ""
        self.last_step = max(step, self.last_step)
        self.last_time = max(reading.time, self.last_time)
        self.attempt = max(self.attempt, reading.attempt)
        if not self._pace or step > self._pace[-1][1]:
            self._pace.append((reading.time, step))
        for signal, value in zip(reading.signals, reading.values, strict=True):
            if signal.place or signal.quantity not in QUANTITIES:
                continue
            self.latest[signal.quantity] = value, reading.time
            if signal.quantity in self._curves:
                self._curves[signal.quantity].add(step, value, reading.attempt)
            if signal.quantity == "loss" and value < (math.inf if self.best_loss is None else self.best_loss[0]):
                self.best_loss = value, step

    def _hear_event(self, event: Finding, offset: int) -> None:
        if event.kind == "rollback":
            self.rollbacks.append(event)
        step = event.step + offset
        for number in range(len(self.findings) - 1, -1, -1):
            known = self.findings[number]
            if (known.kind, known.place) == (event.kind, event.place) and step - known.end <= NEIGHBOURS:
                worse = event.severity > known.severity
                self.findings[number] = replace(
                    event.shifted(offset) if worse else known,
                    severity=max(known.severity, event.severity),
                    span=Span(known.start, step if worse else known.peak, max(step, known.end)),
                    count=known.count + 1,
                    statements=event.stated if worse else known.stated,
                )
                return
        self.findings.append(replace(event.shifted(offset), statements=event.stated))
