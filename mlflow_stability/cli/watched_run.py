"""State of a run that is being watched: its curves, findings, rollbacks and pace, in bounded memory."""

from __future__ import annotations

import math
import time
from collections import deque
from dataclasses import replace

from mlflow_stability.figures.curve import Curve, CurveSketch
from mlflow_stability.journal.record import Record
from mlflow_stability.vocabulary.measured.signal import Signal, StepReading
from mlflow_stability.vocabulary.result import Finding, Span
from mlflow_stability.vocabulary.run import Closing, Reset, Returned

CURVES = ("loss", "grad_norm")
QUANTITIES = (*CURVES, "learning_rate", "update_ratio", "eta_seconds", "skipped_steps")
"""Quantities of the whole model that are shown."""
MERGE_STEPS = 16  # steps between two events of one kind that are merged
MAX_FINDINGS = 200
PACE_READINGS = 100  # the newest readings give the pace


class WatchedRun:
    def __init__(self, name: str = "", run_id: str | None = None) -> None:
        self.name = name
        self.run_id = run_id
        self.ended = ""  # its outcome; empty while it trains
        self.last_step = 0
        self.last_time = 0.0
        self.attempt = 0
        self.latest: dict[str, tuple[float, float]] = {}
        """The newest value of each quantity, and when it was measured."""
        self.best_loss: tuple[float, int] | None = None
        self.findings: deque[Finding] = deque(maxlen=MAX_FINDINGS)
        self.rollbacks: list[Finding] = []
        self._curves = {quantity: CurveSketch(Signal(quantity)) for quantity in CURVES}
        self._pace: deque[tuple[float, int]] = deque(maxlen=PACE_READINGS)

    def add(self, record: Record, offset: int = 0) -> None:
        """Add a record, the next in order; `offset`: what the run adds to its steps."""
        if isinstance(record, StepReading):
            self._add_step(record, record.step + offset)
        elif isinstance(record, Finding):
            self._add_event(record, offset)
        elif isinstance(record, Reset):
            self.attempt = record.attempt
        elif isinstance(record, Closing | Returned):
            self.ended = record.outcome.replace("_", " ")

    def curve(self, quantity: str) -> Curve:
        return self._curves[quantity].curve()

    def value(self, quantity: str) -> float | None:
        """Return the newest value of a quantity; None where it is not measured."""
        latest = self.latest.get(quantity)
        return None if latest is None else latest[0]

    @property
    def steps_per_second(self) -> float | None:
        """Pace of its newest steps; None while it has too few."""
        if len(self._pace) < 2:
            return None
        (start, first), (end, last) = self._pace[0], self._pace[-1]
        return (last - first) / (end - start) if end > start and last > first else None

    def seconds_left(self, now: float | None = None) -> float | None:
        """Return the time that is left, where the training knows its number of steps."""
        latest = self.latest.get("eta_seconds")
        if latest is None:
            return None
        seconds, measured = latest
        return max(0.0, seconds - ((time.time() if now is None else now) - measured))

    def _add_step(self, reading: StepReading, step: int) -> None:
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

    def _add_event(self, event: Finding, offset: int) -> None:
        if event.kind == "rollback":
            self.rollbacks.append(event)
        step = event.step + offset
        for number in range(len(self.findings) - 1, -1, -1):
            earlier = self.findings[number]
            if (earlier.kind, earlier.place) == (event.kind, event.place) and step - earlier.end <= MERGE_STEPS:
                worse = event.severity > earlier.severity
                self.findings[number] = replace(
                    event.shifted(offset) if worse else earlier,
                    severity=max(earlier.severity, event.severity),
                    span=Span(earlier.start, step if worse else earlier.peak, max(step, earlier.end)),
                    count=earlier.count + 1,
                    statements=event.stated if worse else earlier.stated,
                )
                return
        self.findings.append(replace(event.shifted(offset), statements=event.stated))
