"""Rules of alerts: which events are sent, and conditions on signals that make events."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mlflow_stability.alerts.run_metrics import KNOWN_QUANTITIES
from mlflow_stability.errors import SettingsError
from mlflow_stability.kinds.catalog import KINDS, TYPES
from mlflow_stability.kinds.reported.endings import WAYS_TO_END, EndFacts
from mlflow_stability.vocabulary.argument import did_you_mean, short_repr
from mlflow_stability.vocabulary.measured.signal import Condition, StepReading, is_whole_model, parse_condition
from mlflow_stability.vocabulary.result import Finding, Severity, Text
from mlflow_stability.vocabulary.run import Closing
from mlflow_stability.vocabulary.text.foreign_names import resolve_kind, similar_kinds


@dataclass(frozen=True, slots=True)
class Rules:
    floor: Severity
    kinds: frozenset[str]
    """Empty: every type."""
    conditions: tuple[Condition, ...]

    def wants(self, event: Finding) -> bool:
        """Whether to send an event; events of conditions are always sent."""
        if any(event.kind == condition.text for condition in self.conditions):
            return True
        if self.conditions and not self.kinds:
            return False
        if not self.kinds:
            return event.severity >= self.floor
        return event.kind in self.kinds and event.severity >= min(self.floor, highest_severity(event.kind))

    def met(self, reading: StepReading) -> list[Finding]:
        """Return an event for each condition that a step meets."""
        events = []
        for condition in self.conditions:
            wanted = condition.signal
            for signal, value in zip(reading.signals, reading.values, strict=True):
                same_place = signal.place == wanted.place or (not wanted.place and is_whole_model(signal.place))
                if signal.quantity == wanted.quantity and same_place and condition.holds(value):
                    facts = Text(
                        f"{signal} is {value:.6g} at step {reading.step} (condition {condition.text}).",
                        ((signal.quantity, value),),
                    )
                    events.append(
                        Finding.at(
                            facts,
                            reading.step,
                            Severity.WARNING,
                            kind=condition.text,
                            place=signal.place,
                            attempt=reading.attempt,
                            time=reading.time,
                        )
                    )
        return events


def parse_rules(texts: Sequence[str], floor: Severity) -> Rules:
    """Parse the rules of a user that `check_rules` accepted."""
    conditions = tuple(condition for condition in map(parse_condition, texts) if condition is not None)
    return Rules(
        floor, frozenset(resolve_kind(text, KINDS) for text in texts if parse_condition(text) is None), conditions
    )


def highest_severity(kind: str) -> Severity:
    """Return the highest severity of a kind of finding; CRITICAL for kinds of the user's own."""
    return max((max(cls.severities) for cls in TYPES if cls.kind == kind), default=Severity.CRITICAL)


def check_rules(texts: Iterable[str], floor: Severity) -> None:
    """Refuse an event type or a signal that does not exist, and suggest the most similar one.

    A type whose events are never CRITICAL is refused as well if `floor` is CRITICAL: the rule would never fire. It may
    be below WARNING, the usual floor: a type that is named is sent whatever its severity.
    """
    for text in texts:
        condition = parse_condition(text)
        if condition is None:
            kind = resolve_kind(text, KINDS)
            if kind not in KINDS:
                near = similar_kinds(kind, KINDS)
                hint = f"Did you mean {near[0]!r}?" if near else "`mlflow-stability explain` lists the event types."
                raise SettingsError(f"alerts: there is no event type {short_repr(text)}. {hint}")
            highest = highest_severity(kind)
            if highest < floor and floor > Severity.WARNING:
                raise SettingsError(
                    f"alerts: no {kind} is {floor.name}, so the rule {text!r} would never fire. Its highest "
                    f"severity is {highest.name}: write severity={highest.name.lower()!r}."
                )
            continue
        if not math.isfinite(condition.limit):
            raise SettingsError(f"alerts: a condition compares with a finite number; got {short_repr(text)}.")
        quantity = condition.signal.quantity
        if quantity not in KNOWN_QUANTITIES and not quantity.startswith("val_loss"):
            hint = did_you_mean(quantity, KNOWN_QUANTITIES) or " The manual's page 'signals' lists them."
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
