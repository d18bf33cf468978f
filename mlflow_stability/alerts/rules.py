"""Which events an alert is for: event types by name, and conditions on signals."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mlflow_stability.alerts.metrics.signal_names import KNOWN_QUANTITIES
from mlflow_stability.errors import SettingsError
from mlflow_stability.kinds.catalog import KINDS, TYPES
from mlflow_stability.vocabulary.argument import did_you_mean, shown
from mlflow_stability.vocabulary.measured import Condition, StepReading, condition_in, of_the_whole
from mlflow_stability.vocabulary.result import Finding, Severity, Text
from mlflow_stability.vocabulary.text import kind_named, kinds_near


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of one alert, read."""

    floor: Severity
    kinds: frozenset[str]
    """Empty: every type."""
    conditions: tuple[Condition, ...]

    def wants(self, event: Finding) -> bool:
        """Whether an event is to be sent; one that a condition made always is."""
        if any(event.kind == each.text for each in self.conditions):
            return True
        if self.conditions and not self.kinds:
            return False
        if not self.kinds:
            return event.severity >= self.floor
        return event.kind in self.kinds and event.severity >= min(self.floor, highest_severity(event.kind))

    def met(self, reading: StepReading) -> list[Finding]:
        """An event for each condition that a step meets."""
        found = []
        for condition in self.conditions:
            wanted = condition.signal
            for signal, value in zip(reading.signals, reading.values, strict=True):
                same_place = signal.place == wanted.place or (not wanted.place and of_the_whole(signal.place))
                if signal.quantity == wanted.quantity and same_place and condition.holds(value):
                    facts = Text(
                        f"{signal} is {value:.6g} at step {reading.step} (condition {condition.text}).",
                        ((signal.quantity, value),),
                    )
                    found.append(
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
        return found


def rules_of(texts: Sequence[str], floor: Severity) -> Rules:
    """The rules that a user wrote, which `check_rules` has let pass."""
    conditions = tuple(each for each in map(condition_in, texts) if each is not None)
    return Rules(floor, frozenset(kind_named(text, KINDS) for text in texts if condition_in(text) is None), conditions)


def highest_severity(kind: str) -> Severity:
    """The highest severity that findings of a kind have; of a kind of the user's own the highest there is."""
    return max((max(each.severities) for each in TYPES if each.kind == kind), default=Severity.CRITICAL)


def check_rules(texts: Iterable[str], floor: Severity) -> None:
    """Refuse an event type or a signal that does not exist, with the one that was probably meant.

    A type whose events are never CRITICAL is refused as well if `floor` is CRITICAL: the rule would never fire. It may
    be below WARNING, the usual floor: a type that is named is sent whatever its severity.
    """
    for text in texts:
        condition = condition_in(text)
        if condition is None:
            kind = kind_named(text, KINDS)
            if kind not in KINDS:
                near = kinds_near(kind, KINDS)
                hint = f"Did you mean {near[0]!r}?" if near else "`mlflow-stability explain` lists the event types."
                raise SettingsError(f"alerts: there is no event type {shown(text)}. {hint}")
            highest = highest_severity(kind)
            if highest < floor and floor > Severity.WARNING:
                raise SettingsError(
                    f"alerts: no {kind} is {floor.name}, so the rule {text!r} would never fire. Its highest "
                    f"severity is {highest.name}: write severity={highest.name.lower()!r}."
                )
            continue
        if not math.isfinite(condition.limit):
            raise SettingsError(f"alerts: a condition compares with a finite number; got {shown(text)}.")
        quantity = condition.signal.quantity
        if quantity not in KNOWN_QUANTITIES and not quantity.startswith("val_loss"):
            hint = did_you_mean(quantity, KNOWN_QUANTITIES) or " The manual's page 'signals' lists them."
            raise SettingsError(f"alerts: there is no signal {shown(quantity)}.{hint}")
