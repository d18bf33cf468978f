"""The current metrics of one recording for Prometheus and OpenTelemetry, and their names there.

TensorBoard and Weights & Biases use the keys of MLflow from `tracking/keys.py`. A signal that is not in the table is
not exported. Guarantees: counters never fall; one thread may read while another one writes.
"""

from __future__ import annotations

import math
import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from mlflow_stability.vocabulary.argument import did_you_mean
from mlflow_stability.vocabulary.measured.signal import StepReading
from mlflow_stability.vocabulary.measured.signal_type import signal_types
from mlflow_stability.vocabulary.result import Finding, Severity
from mlflow_stability.vocabulary.run import Fact
from mlflow_stability.vocabulary.text.recorded_keys import TOPICS


@dataclass(frozen=True, slots=True)
class SignalNames:
    """One signal of a whole model in other tools."""

    quantity: str  # its name in the record
    prometheus: str
    meaning: str
    unit: str = "1"  # as OpenTelemetry writes units; ``1`` for plain numbers
    counter: bool = False  # whether it only grows
    type: str = ""  # label `type`, where several signals share the name
    by_device: bool = False  # whether it has the label `gpu_id`

    @property
    def otel(self) -> str:
        """The name in OpenTelemetry: ``llm.training.loss``."""
        name = self.prometheus.removesuffix("_total")
        for group in ("llm_training", "llm_validation", "llm_gradient", "llm_gpu", "llm"):
            if name.startswith(f"{group}_"):
                return f"{group.replace('_', '.')}.{name.removeprefix(f'{group}_')}"
        return name


SIGNALS = tuple(
    SignalNames(
        *(signal.quantity, signal.exported, signal.short_meaning, signal.unit, signal.counter),
        *(signal.exported_type, signal.by_device),
    )
    for signal in sorted(signal_types().values(), key=lambda signal: TOPICS.index(signal.topic))
    if signal.exported
)
"""Every exported signal of a whole model, with the name in its own declaration."""
STEPS = SignalNames("", "llm_training_steps_total", "Recorded steps", "{step}", counter=True)
LOSS_SPIKES = SignalNames("", "llm_loss_spikes_total", "Loss spikes", "{event}", counter=True)
GRADIENT_SPIKES = SignalNames("", "llm_gradient_spikes_total", "Exploding gradients", "{event}", counter=True)
KINDS_OF_SPIKES = {
    LOSS_SPIKES.prometheus: frozenset({"loss_spike"}),
    GRADIENT_SPIKES.prometheus: frozenset({"gradient_explosion", "layer_explosion"}),
}
"""The event types that each of these counts."""
EVENTS = SignalNames("", "llm_training_events_total", "Events, by type and severity", "{event}", counter=True)
STEP_DURATION = SignalNames("step_time", "llm_step_duration_seconds", "Time from one step to the next", "s")
"""Metrics that are counted or collected, not read from a reading; `STEP_DURATION` is a histogram."""
EVERYTHING = (*SIGNALS, STEPS, LOSS_SPIKES, GRADIENT_SPIKES, EVENTS, STEP_DURATION)
FAMILIES = tuple(
    tuple(names for names in EVERYTHING if names.prometheus == name)
    for name in dict.fromkeys(names.prometheus for names in EVERYTHING)
)
"""The same, grouped by name."""
BY_QUANTITY = {names.quantity: names for names in SIGNALS}
KNOWN_QUANTITIES = frozenset(signal_types())  # quantities that conditions can compare


def hint_if_unknown(quantity: str) -> str:
    """Return a hint where no signal has this name; empty where one has."""
    if quantity in KNOWN_QUANTITIES or quantity.startswith("val_loss"):
        return ""
    return did_you_mean(quantity, KNOWN_QUANTITIES) or " The manual's page 'signals' lists them."


BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds of the histogram of step times, in seconds."""


@dataclass(frozen=True, slots=True)
class Samples:
    """All metrics of a recording at one time."""

    labels: Mapping[str, str]  # ``model_name`` and ``run_id``
    values: Mapping[str, float]  # by their names in Prometheus
    of_devices: Mapping[tuple[str, str], float]  # values of each device, by quantity and `gpu_id`
    events: Mapping[tuple[str, str], int]  # numbers of events by type and severity
    buckets: tuple[int, ...]  # number of step times in each bucket; the last counts longer ones
    seconds: float  # sum of all step times

    def devices(self, quantity: str) -> list[tuple[str, float]]:
        return sorted((gpu_id, value) for (name, gpu_id), value in self.of_devices.items() if name == quantity)

    def spikes(self, name: str) -> dict[str, int]:
        """Return the number of spikes of one counter for every severity, so that no series begins late."""
        counts = {severity.name.lower(): 0 for severity in Severity}
        for (kind, severity), count in self.events.items():
            if kind in KINDS_OF_SPIKES[name]:
                counts[severity] += count
        return counts


@dataclass(slots=True)
class RunMetrics:
    run_id: str = ""  # empty while the run is not known
    on_step_time: Callable[[float], None] | None = None
    """Called with every step time, for exporters with a histogram of their own."""
    model_name: str = ""
    _step: int = 0
    _values: dict[str, float] = field(default_factory=dict)
    _of_devices: dict[tuple[str, str], float] = field(default_factory=dict)
    _events: Counter[tuple[str, str]] = field(default_factory=Counter)
    _buckets: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS) + 1))
    _seconds: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, record: object) -> None:
        step_time = None
        with self._lock:
            if isinstance(record, StepReading):
                step_time = self._read(record)
            elif isinstance(record, Finding):
                self._events[record.kind, record.severity.name.lower()] += 1
            elif isinstance(record, Fact) and record.key == "model":
                self.model_name = record.value
        if step_time is not None and self.on_step_time is not None:
            self.on_step_time(step_time)  # outside the lock, because it takes locks of its own

    def samples(self) -> Samples:
        with self._lock:
            values = dict(self._values)
            for name, kinds in KINDS_OF_SPIKES.items():
                values[name] = sum(count for (kind, _), count in self._events.items() if kind in kinds)
            values.setdefault(STEPS.prometheus, 0)
            labels = {"model_name": self.model_name, "run_id": self.run_id}
            events, devices = dict(self._events), dict(self._of_devices)
            return Samples(labels, values, devices, events, tuple(self._buckets), self._seconds)

    def _read(self, reading: StepReading) -> float | None:
        """Take a reading; return its step time, where that was measured."""
        step_time = None
        if reading.step != self._step and any(signal.quantity not in _LOGGED_BY_SCRIPT for signal in reading.signals):
            self._step = reading.step
            self._values[STEPS.prometheus] = self._values.get(STEPS.prometheus, 0) + 1
        for signal, value in zip(reading.signals, reading.values, strict=True):
            names = BY_QUANTITY.get(signal.quantity)
            if names is not None and names.by_device:
                # Signals of a training on one device do not name it.
                self._of_devices[signal.quantity, signal.place.partition(":")[2] or "0"] = value
            elif signal.place:
                continue
            elif names is not None:
                if not (names.counter and math.isnan(value)):
                    before = self._values.get(names.prometheus, 0.0) if names.counter else value
                    self._values[names.prometheus] = max(value, before)  # a rollback may restore an older value
            elif signal.quantity == STEP_DURATION.quantity and value >= 0:
                self._buckets[bisect_left(BUCKETS, value)] += 1
                self._seconds += value
                step_time = value
        return step_time


_LOGGED_BY_SCRIPT = frozenset({"val_loss", "val_loss_step"})
"""Signals that the script logs, which are not counted as steps."""
