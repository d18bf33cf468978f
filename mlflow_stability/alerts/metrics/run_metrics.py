"""The current metrics of one recording, for whoever scrapes or exports them: last values, counts, a histogram.

In: records of its journal, from the first on. Out: samples by the names of the table. Guarantees: counters never fall;
one thread may read while another one writes.
"""

from __future__ import annotations

import math
import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from mlflow_stability.alerts.metrics.signal_names import (
    BY_QUANTITY,
    KINDS_OF_SPIKES,
    STEP_DURATION,
    STEPS,
    SignalNames,
)
from mlflow_stability.vocabulary.measured import StepReading
from mlflow_stability.vocabulary.result import Finding, Severity
from mlflow_stability.vocabulary.run import Fact

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper ends of the histogram of step times, in seconds."""


@dataclass(frozen=True, slots=True)
class Samples:
    """All metrics of a recording at one moment."""

    labels: Mapping[str, str]
    """``model_name`` and ``run_id``."""
    values: Mapping[str, float]
    """By the names that Prometheus has for them."""
    of_devices: Mapping[tuple[str, str], float]
    """What is measured of each device, by quantity and `gpu_id`."""
    events: Mapping[tuple[str, str], int]
    """How many, by type and severity."""
    buckets: tuple[int, ...]
    """How many step times were in each bucket, and in the last place how many were longer."""
    seconds: float
    """The sum of all step times."""

    def devices(self, quantity: str) -> list[tuple[str, float]]:
        """The value of each device, by `gpu_id`."""
        return sorted((gpu_id, value) for (name, gpu_id), value in self.of_devices.items() if name == quantity)

    def spikes(self, name: str) -> dict[str, int]:
        """The number of spikes of one counter, by severity; of each severity, so that no series begins late."""
        counts = {each.name.lower(): 0 for each in Severity}
        for (kind, severity), count in self.events.items():
            if kind in KINDS_OF_SPIKES[name]:
                counts[severity] += count
        return counts


@dataclass(slots=True)
class RunMetrics:
    """The metrics of one recording."""

    run_id: str = ""
    """Empty while the run is not known."""
    on_step_time: Callable[[float], None] | None = None
    """Gets every step time, for whoever keeps a histogram of its own."""
    model_name: str = ""
    _step: int = 0
    _values: dict[str, float] = field(default_factory=dict)
    _of_devices: dict[tuple[str, str], float] = field(default_factory=dict)
    _events: Counter[tuple[str, str]] = field(default_factory=Counter)
    _buckets: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS) + 1))
    _seconds: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, record: object) -> None:
        """Take a record of the journal in."""
        step_time = None
        with self._lock:
            if isinstance(record, StepReading):
                step_time = self._read(record)
            elif isinstance(record, Finding):
                self._events[record.kind, record.severity.name.lower()] += 1
            elif isinstance(record, Fact) and record.key == "model":
                self.model_name = record.value
        if step_time is not None and self.on_step_time is not None:  # which takes locks of its own
            self.on_step_time(step_time)

    def samples(self) -> Samples:
        """All of them as they are now."""
        with self._lock:
            values = dict(self._values)
            for name, kinds in KINDS_OF_SPIKES.items():
                values[name] = sum(count for (kind, _), count in self._events.items() if kind in kinds)
            values.setdefault(STEPS.prometheus, 0)
            labels = {"model_name": self.model_name, "run_id": self.run_id}
            events, devices = dict(self._events), dict(self._of_devices)
            return Samples(labels, values, devices, events, tuple(self._buckets), self._seconds)

    def _read(self, reading: StepReading) -> float | None:
        """Take a step in; gives how long it took, where that was measured."""
        step_time = None
        if reading.step != self._step and any(signal.quantity not in _HEARD for signal in reading.signals):
            self._step = reading.step
            self._values[STEPS.prometheus] = self._values.get(STEPS.prometheus, 0) + 1
        for signal, value in zip(reading.signals, reading.values, strict=True):
            names = BY_QUANTITY.get(signal.quantity)
            if names is not None and names.by_device:
                # Of a training on one device, signals do not name it.
                self._of_devices[signal.quantity, signal.place.partition(":")[2] or "0"] = value
            elif signal.place:
                continue
            elif names is not None:
                self._set(names, value)
            elif signal.quantity == STEP_DURATION.quantity and value >= 0:
                self._buckets[bisect_left(BUCKETS, value)] += 1
                self._seconds += value
                step_time = value
        return step_time

    def _set(self, names: SignalNames, value: float) -> None:
        if names.counter:  # a rollback may bring an older value back
            if math.isnan(value):
                return
            value = max(value, self._values.get(names.prometheus, 0.0))
        self._values[names.prometheus] = value


_HEARD = frozenset({"val_loss", "val_loss_step"})
"""What the script logged itself makes no step."""
