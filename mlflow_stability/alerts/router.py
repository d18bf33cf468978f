"""Turn events into messages for one channel: rules, severity, cooldown, bursts folded into one message.

Guarantees: each wanted event is counted in exactly one message; the cooldown of a type passes between two of its
messages, unless the severity rises or the training is over; `resume` continues from what `saved` returned. The clock is
passed in.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from mlflow_stability.alerts.message import AlertMessage, RunLink
from mlflow_stability.alerts.run_metrics import hint_if_unknown
from mlflow_stability.errors import SettingsError
from mlflow_stability.kinds.catalog import KINDS, TYPES
from mlflow_stability.kinds.reported.endings import WAYS_TO_END, EndFacts
from mlflow_stability.vocabulary.argument import short_repr
from mlflow_stability.vocabulary.measured.signal import StepReading, is_whole_model, parse_condition
from mlflow_stability.vocabulary.result import Finding, Severity, Text
from mlflow_stability.vocabulary.run import Closing
from mlflow_stability.vocabulary.text.foreign_names import resolve_kind, similar_kinds

COOLDOWNS = {
    **dict.fromkeys(("nan_detected", "inf_detected"), 60.0),
    **dict.fromkeys(("divergence", "gradient_explosion", "layer_explosion"), 120.0),
    **dict.fromkeys(("throughput_drop", "step_time_increase", "low_mfu", "low_gpu_utilization"), 600.0),
    **dict.fromkeys(("plateau", "slow_progress"), 1800.0),
}
"""Seconds between two messages of one type."""
DEFAULT_COOLDOWN = 300.0  # seconds for types that are not in `COOLDOWNS`, and for conditions
BURST_SECONDS = {Severity.INFO: 5.0, Severity.WARNING: 5.0, Severity.CRITICAL: 1.0}
"""Seconds for which the first event of a burst waits for others."""


class AlertRouter:
    def __init__(self, rules: Sequence[str], floor: Severity, cooldown: float | None = None) -> None:
        """`rules`: event types and conditions on signals that `check_rules` accepted; none: every type."""
        self._conditions = [condition for rule in rules if (condition := parse_condition(rule)) is not None]
        self._kinds = {resolve_kind(rule, KINDS) for rule in rules if parse_condition(rule) is None}
        self._floor = floor
        self._cooldown = cooldown
        self._bursts: dict[str, tuple[AlertMessage, float]] = {}  # waiting events of each type, and when they are due
        self._sent: dict[str, tuple[float, Severity]] = {}  # time and severity of the last message of each type

    @property
    def needs_readings(self) -> bool:
        return bool(self._conditions)

    def step(self, reading: StepReading, now: float) -> bool:
        """Take a reading; return whether it met a condition."""
        met = False
        for condition in self._conditions:
            wanted = condition.signal
            for signal, value in zip(reading.signals, reading.values, strict=True):
                same_place = signal.place == wanted.place or (not wanted.place and is_whole_model(signal.place))
                if signal.quantity == wanted.quantity and same_place and condition.holds(value):
                    met = True
                    sentence = f"{signal} is {value:.6g} at step {reading.step} (condition {condition.text})."
                    event = Finding.at(
                        Text(sentence, ((signal.quantity, value),)),
                        reading.step,
                        Severity.WARNING,
                        kind=condition.text,
                        place=signal.place,
                        attempt=reading.attempt,
                        time=reading.time,
                    )
                    self.add(event, now)
        return met

    def take(self, event: Finding, now: float) -> bool:
        """Take an event; return whether the rules want it."""
        if any(event.kind == condition.text for condition in self._conditions):
            wanted = True
        elif self._kinds:
            wanted = event.kind in self._kinds and event.severity >= min(self._floor, highest_severity(event.kind))
        else:
            wanted = not self._conditions and event.severity >= self._floor
        if wanted:
            self.add(event, now)
        return wanted

    def due(self, now: float, run: RunLink | None = None, *, over: bool = False) -> list[AlertMessage]:
        """Return the messages to send now, in order of time; all of them where the run is over."""
        ready = [kind for kind, (_, due) in self._bursts.items() if over or now >= due]
        messages = [replace(self._bursts.pop(kind)[0], run=run) for kind in ready]
        self._sent |= {message.kind: (now, message.severity) for message in messages}
        return sorted(messages, key=lambda message: message.time)

    def saved(self) -> dict[str, Any]:
        """Return the state as plain JSON, for `resume`."""
        bursts = {kind: {**message.plain(), "due": due} for kind, (message, due) in self._bursts.items()}
        return {"bursts": bursts, "sent": {kind: list(last) for kind, last in self._sent.items()}}

    def resume(self, saved: dict[str, Any]) -> None:
        for kind, burst in saved.get("bursts", {}).items():
            plain = {"kind": kind, **burst}
            due = plain.pop("due")
            self._bursts[kind] = AlertMessage.from_plain(plain), due
        self._sent = {kind: (at, Severity(severity)) for kind, (at, severity) in saved.get("sent", {}).items()}

    def add(self, event: Finding, now: float) -> None:
        """Add an event to its burst, whatever the rules are."""
        due, step = now + BURST_SECONDS[event.severity], event.step
        last = self._sent.get(event.kind)
        if last is not None and event.severity <= last[1]:
            cooldown = COOLDOWNS.get(event.kind, DEFAULT_COOLDOWN) if self._cooldown is None else self._cooldown
            due = max(due, last[0] + cooldown)
        remedies = tuple(map(str, event.remedies))
        new = AlertMessage(
            event.kind, event.severity, 1, step, step, event.message, remedies, event.time, event.metrics
        )
        burst = self._bursts.get(event.kind)
        if burst is not None:
            before, due_before = burst
            shown, due = (new, min(due_before, due)) if event.severity > before.severity else (before, due_before)
            new = replace(
                shown,
                count=before.count + 1,
                first_step=min(before.first_step, step),
                last_step=max(before.last_step, step),
                time=max(before.time, event.time),
            )
        self._bursts[event.kind] = new, due


def highest_severity(kind: str) -> Severity:
    """Return the highest severity of a kind of finding; CRITICAL for kinds of the user's own."""
    return max((max(cls.severities) for cls in TYPES if cls.kind == kind), default=Severity.CRITICAL)


def check_rules(rules: Iterable[str], floor: Severity) -> None:
    """Refuse an event type or a signal that does not exist, and suggest the most similar one.

    A type whose events are never CRITICAL is refused as well if `floor` is CRITICAL: the rule would never fire. It may
    be below WARNING, the usual floor: a type that is named is sent whatever its severity.
    """
    for rule in rules:
        condition = parse_condition(rule)
        if condition is None:
            kind = resolve_kind(rule, KINDS)
            if kind not in KINDS:
                near = similar_kinds(kind, KINDS)
                hint = f"Did you mean {near[0]!r}?" if near else "`mlflow-stability explain` lists the event types."
                raise SettingsError(f"alerts: there is no event type {short_repr(rule)}. {hint}")
            highest = highest_severity(kind)
            if highest < floor and floor > Severity.WARNING:
                raise SettingsError(
                    f"alerts: no {kind} is {floor.name}, so the rule {rule!r} would never fire. Its highest "
                    f"severity is {highest.name}: write severity={highest.name.lower()!r}."
                )
            continue
        if not math.isfinite(condition.limit):
            raise SettingsError(f"alerts: a condition compares with a finite number; got {short_repr(rule)}.")
        quantity = condition.signal.quantity
        if hint := hint_if_unknown(quantity):
            raise SettingsError(f"alerts: there is no signal {short_repr(quantity)}.{hint}")


_ENDINGS = {"crashed": "crashed", "exited": "crashed", "killed": "killed", "out_of_memory": "out_of_memory"}
"""Event type of each outcome that is reported; a user who presses Ctrl-C needs no alert."""
_REMEDIES = {ending.kind: ending.remedies for ending in WAYS_TO_END}


def ending_event(closing: Closing, last_step: int, time: float) -> Finding | None:
    """Return the event of a bad end; None for a good one. `time`: when, if the closing does not say."""
    kind = _ENDINGS.get(closing.outcome)
    if kind is None:
        return None
    facts, when = EndFacts(closing.outcome, closing.detail), closing.time or time
    return Finding.at(facts, last_step, Severity.CRITICAL, kind=kind, remedies=_REMEDIES[kind], time=when)
