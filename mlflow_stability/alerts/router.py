"""Turn events into messages for one channel: rules, severity, cooldown, bursts folded into one message.

Guarantees: each wanted event is counted in exactly one message; the cooldown of a type passes between two of its
messages, unless the severity rises or the training is over; `resume` continues from what `saved` returned. The clock is
passed in.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from mlflow_stability.alerts.message import AlertMessage, RunLink
from mlflow_stability.alerts.rules import parse_rules
from mlflow_stability.vocabulary.measured.signal import StepReading
from mlflow_stability.vocabulary.result import Finding, Severity

COOLDOWNS = {
    "nan_detected": 60.0,
    "inf_detected": 60.0,
    "divergence": 120.0,
    "gradient_explosion": 120.0,
    "layer_explosion": 120.0,
    "loss_spike": 300.0,
    "memory_pressure": 300.0,
    "throughput_drop": 600.0,
    "step_time_increase": 600.0,
    "low_mfu": 600.0,
    "low_gpu_utilization": 600.0,
    "plateau": 1800.0,
    "slow_progress": 1800.0,
}
"""Seconds between two messages of one type."""
DEFAULT_COOLDOWN = 300.0  # seconds for types that are not in `COOLDOWNS`, and for conditions
BURST_SECONDS = {Severity.INFO: 5.0, Severity.WARNING: 5.0, Severity.CRITICAL: 1.0}
"""Seconds for which the first event of a burst waits for others."""


@dataclass(slots=True)
class _WaitingEvents:
    count: int
    first_step: int
    last_step: int
    time: float
    severity: Severity
    due: float
    message: str
    remedies: tuple[str, ...]
    evidence: dict[str, float]


class AlertRouter:
    def __init__(self, rules: tuple[str, ...], floor: Severity, cooldown: float | None = None) -> None:
        self._rules = parse_rules(rules, floor)
        self._cooldown = cooldown
        self._bursts: dict[str, _WaitingEvents] = {}
        self._sent: dict[str, tuple[float, Severity]] = {}
        """Time and severity of the last message of each type."""

    @property
    def needs_readings(self) -> bool:
        """Whether there are conditions, which need readings."""
        return bool(self._rules.conditions)

    def step(self, reading: StepReading, now: float) -> bool:
        """Take a reading; return whether it met a condition."""
        met = self._rules.met(reading)
        for event in met:
            self.add(event, now)
        return bool(met)

    def take(self, event: Finding, now: float) -> bool:
        """Take an event; return whether the rules want it."""
        wanted = self._rules.wants(event)
        if wanted:
            self.add(event, now)
        return wanted

    def due(self, now: float, run: RunLink | None = None, *, over: bool = False) -> list[AlertMessage]:
        """Return the messages to send now, in order of time; all of them where the run is over."""
        ready = [kind for kind, burst in self._bursts.items() if over or now >= burst.due]
        messages = []
        for kind in ready:
            burst = self._bursts.pop(kind)
            self._sent[kind] = now, burst.severity
            messages.append(
                AlertMessage(
                    kind,
                    burst.severity,
                    burst.count,
                    burst.first_step,
                    burst.last_step,
                    burst.message,
                    burst.remedies,
                    burst.time,
                    burst.evidence,
                    run,
                )
            )
        return sorted(messages, key=lambda message: message.time)

    def saved(self) -> dict[str, Any]:
        """Return the state as plain JSON, for `resume`."""
        bursts = {
            kind: {**asdict(burst), "evidence": {name: repr(value) for name, value in burst.evidence.items()}}
            for kind, burst in self._bursts.items()
        }
        return {"bursts": bursts, "sent": {kind: list(last) for kind, last in self._sent.items()}}

    def resume(self, saved: dict[str, Any]) -> None:
        """Continue from what `saved` returned."""
        self._bursts = {kind: _read_burst(burst) for kind, burst in saved.get("bursts", {}).items()}
        self._sent = {kind: (at, Severity(severity)) for kind, (at, severity) in saved.get("sent", {}).items()}

    def add(self, event: Finding, now: float) -> None:
        """Add an event to its burst, whatever the rules are."""
        burst = self._bursts.get(event.kind)
        due = self._due_at(event, now)
        if burst is None:
            self._bursts[event.kind] = _WaitingEvents(
                1,
                event.step,
                event.step,
                event.time,
                event.severity,
                due,
                event.message,
                tuple(map(str, event.remedies)),
                event.metrics,
            )
            return
        burst.count += 1
        burst.first_step, burst.last_step = min(burst.first_step, event.step), max(burst.last_step, event.step)
        burst.time = max(burst.time, event.time)
        if event.severity > burst.severity:
            burst.severity, burst.due = event.severity, min(burst.due, due)
            burst.message, burst.evidence = event.message, event.metrics
            burst.remedies = tuple(map(str, event.remedies))

    def _due_at(self, event: Finding, now: float) -> float:
        gathered = now + BURST_SECONDS[event.severity]
        last = self._sent.get(event.kind)
        if last is None or event.severity > last[1]:
            return gathered
        cooldown = COOLDOWNS.get(event.kind, DEFAULT_COOLDOWN) if self._cooldown is None else self._cooldown
        return max(gathered, last[0] + cooldown)


def _read_burst(values: dict[str, Any]) -> _WaitingEvents:
    evidence = {name: float(value) for name, value in values["evidence"].items()}
    severity, remedies = Severity(values["severity"]), tuple(values["remedies"])
    return _WaitingEvents(**{**values, "evidence": evidence, "severity": severity, "remedies": remedies})
