"""Ends a training where the user asked for it: ``stop_on=("nonfinite", "grad_norm>100", "val_loss plateau 5")``.

In: conditions as text, and what is known before a step, after it, and of what the script has logged. Out: the condition
that is met, if one is. Guarantees: text that cannot be meant, a misspelt name above all, is refused at once and not
never met; what can be known before a step is judged before it.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Literal

from mlflow_stability.errors import SettingsError, TrainingDiverged
from mlflow_stability.kinds.reported.autopilot import EarlyStopFacts
from mlflow_stability.vocabulary.measured import Condition, Signal, StepReading, condition_in

BEFORE_STEP = ("loss", "grad_norm", "learning_rate", "loss_scale")
"""What is known before a step is taken."""
AFTER_STEP = ("grad_norm_clipped", "micro_batches", "skipped_steps", "step_time")
SHORT_NAMES = {"throughput": ("tokens_per_second", "samples_per_second"), "memory": ("memory_share",)}
"""Words for what has other names among the signals."""
MEASURED = ("tokens_per_second", "samples_per_second", "memory_share", "memory_allocated", "host_memory")
VALIDATION = "val_loss"
"""What the script logs to MLflow itself."""
QUANTITIES = (*BEFORE_STEP, *AFTER_STEP, *MEASURED, *SHORT_NAMES, VALIDATION)
"""What can be compared with a number."""
NONFINITE = ("loss", "grad_norm", "grad_norm_clipped")
"""What ``nonfinite`` looks at."""
USUAL_OF, USUAL_FROM = 100, 20
"""The usual value is the median of so many values, and known from so many on."""
LOW_IN_A_ROW = 5
"""So many values in a row must have fallen so far, as they are measured: throughput at every tenth step."""
_RELATIVE = re.compile(r"\s*([A-Za-z_]\w*)\s*([+-])\s*(\d+(?:\.\d+)?)\s*%\s*")
_MULTIPLE = re.compile(r"\s*([A-Za-z_]\w*)\s*>\s*(\d+(?:\.\d+)?)\s*x\s*")
_PLATEAU = re.compile(r"\s*([A-Za-z_]\w*)\s+plateau\s+(\d+)\s*")
_SHARE = re.compile(r"(.*[<>]=?)\s*(\d+(?:\.\d+)?)\s*%\s*")
FORMS = "'nonfinite', 'loss>50', 'loss>100x', 'val_loss plateau 5', 'val_loss+10%', 'throughput-80%' or 'memory>90%'"


@dataclass(frozen=True, slots=True)
class StopCondition:
    """One reason to end a training."""

    text: str
    form: Literal["nonfinite", "comparison", "multiple", "rise", "fall", "plateau"] = "nonfinite"
    quantities: tuple[str, ...] = NONFINITE
    condition: Condition | None = None
    """Of a comparison."""
    share: float = 0.0
    """Of a rise above the best value, or of a fall below the usual one; of a multiple the factor."""
    patience: int = 0
    """Of a plateau: so many values without a new best one."""

    def is_met(self, quantity: str, value: float) -> bool:
        """Whether this value alone is a reason to stop."""
        if quantity not in self.quantities:
            return False
        if self.form == "nonfinite":
            return not math.isfinite(value)
        return self.condition is not None and self.condition.holds(value)


@dataclass(frozen=True, slots=True)
class Stop:
    """A condition that is met."""

    condition: StopCondition
    step: int
    reason: str
    """``loss is 60``."""
    before_step: bool = False
    """Whether the step is not taken."""

    @property
    def facts(self) -> EarlyStopFacts:
        """What is recorded of it."""
        return EarlyStopFacts(self.condition.text, self.reason, self.before_step)

    @property
    def error(self) -> TrainingDiverged:
        """What the training is ended with."""
        return TrainingDiverged(self.facts.sentence(self.step), f"{self.reason} (stop_on={self.condition.text})")


def stop_conditions(texts: str | Iterable[str], quantities: Iterable[str] = QUANTITIES) -> tuple[StopCondition, ...]:
    """Read the conditions that a user wrote."""
    known = tuple(quantities)
    return tuple(_read(each, known) for each in ((texts,) if isinstance(texts, str) else texts))


@dataclass(slots=True)
class _Course:
    """What one condition has seen of one signal."""

    best: float = math.inf
    since_best: int = 0
    usual: deque[float] = field(default_factory=lambda: deque(maxlen=USUAL_OF))
    low: int = 0
    low_since: int = 0
    """The step of the first of the low values."""


class StopRules:
    """The conditions of one training, with what they have seen."""

    def __init__(self, conditions: Iterable[StopCondition]) -> None:
        self._conditions = tuple(conditions)
        at_once = [each for each in self._conditions if each.form in ("nonfinite", "comparison")]
        self._before = tuple(each for each in at_once if set(each.quantities) & set(BEFORE_STEP))
        self._courses: dict[tuple[str, Signal], _Course] = {}

    @property
    def looks_before(self) -> tuple[str, ...]:
        """The quantities that are to be known before a step."""
        return tuple(dict.fromkeys(each for one in self._before for each in one.quantities if each in BEFORE_STEP))

    def before_step(self, step: int, values: Mapping[str, float], *, is_guarded: bool) -> Stop | None:
        """Judge a step that is not taken yet; `is_guarded`: broken steps are skipped, and looked into, by the guard."""
        for each in self._before:
            if each.form == "nonfinite" and is_guarded:
                continue
            for quantity, value in values.items():
                if each.is_met(quantity, value):
                    return Stop(each, step, f"{quantity} is {value:.6g}", before_step=True)
        return None

    def after_step(self, reading: StepReading, *, skipped: bool = False) -> Stop | None:
        """Judge what was measured at a step.

        `skipped`: a loss scaler threw the step away: that is how it finds its scale, and no reason to stop.
        """
        for each in self._conditions:
            if skipped and each.form == "nonfinite":
                continue
            for signal, value in zip(reading.signals, reading.values, strict=True):
                if signal.quantity in each.quantities and (reason := self._reason(each, signal, value, reading.step)):
                    return Stop(each, reading.step, reason)
        return None

    def _reason(self, condition: StopCondition, signal: Signal, value: float, step: int) -> str:
        """Why this value is one; empty where it is none."""
        if condition.form in ("nonfinite", "comparison"):
            return f"{signal} is {value:.6g}" if condition.is_met(signal.quantity, value) else ""
        course = self._courses.setdefault((condition.text, signal), _Course())
        if condition.form == "fall":
            return _fallen(course, condition.share, signal, value, step)
        if condition.form == "multiple":
            return _multiplied(course, condition.share, signal, value)
        best, course.best = course.best, min(course.best, value)
        course.since_best = 0 if value < best else course.since_best + 1
        if condition.form == "plateau":
            patience = condition.patience
            if course.since_best < patience:
                return ""
            return f"{signal} has not fallen below its best of {best:.6g} in {patience} values"
        limit = best + condition.share * abs(best)
        if not value >= limit:
            return ""
        above = f"{value / best - 1:.0%} above" if best > 0 else "above"
        return f"{signal} is {value:.6g}, {above} its best of {best:.6g}"


def _multiplied(course: _Course, factor: float, signal: Signal, value: float) -> str:
    """Compare with the median of the values before, at first with that of the few there are."""
    usual = median(course.usual) if course.usual else math.inf
    if value > factor * abs(usual):
        return f"{signal} is {value:.6g}, more than {factor:g} times its usual {usual:.6g}"
    if math.isfinite(value):
        course.usual.append(value)
    return ""


def _fallen(course: _Course, share: float, signal: Signal, value: float, step: int) -> str:
    if not math.isfinite(value):
        return ""
    usual = median(course.usual) if len(course.usual) >= USUAL_FROM else 0.0
    course.low = course.low + 1 if value < (1 - share) * usual else 0
    if not course.low:
        course.usual.append(value)
    elif course.low == 1:
        course.low_since = step
    if course.low < LOW_IN_A_ROW:
        return ""
    return (
        f"{signal} is {value:.6g}, {1 - value / usual:.0%} below its usual {usual:.6g} in {LOW_IN_A_ROW} measurements "
        f"in a row since step {course.low_since}"
    )


def _read(text: str, known: tuple[str, ...]) -> StopCondition:
    said = text.strip()
    if said == "nonfinite":
        return StopCondition(said)
    if found := _PLATEAU.fullmatch(text):
        name, patience = found[1], int(found[2])
        if patience < 1:
            raise SettingsError(f"stop_on needs at least 1 value for a plateau, got {text!r}.")
        return StopCondition(said, "plateau", _names(name, known, text), patience=patience)
    if found := _RELATIVE.fullmatch(text):
        name, sign, percent = found[1], found[2], float(found[3])
        if not percent > 0 or (sign == "-" and percent >= 100):
            raise SettingsError(f"stop_on takes a fall by less than 100 % or a rise by more than 0 %, got {text!r}.")
        return StopCondition(said, "rise" if sign == "+" else "fall", _names(name, known, text), share=percent / 100)
    if found := _MULTIPLE.fullmatch(text):
        name, factor = found[1], float(found[2])
        if not factor > 1:
            raise SettingsError(f"stop_on takes a multiple above 1, got {text!r}.")
        return StopCondition(said, "multiple", _names(name, known, text), share=factor)
    share = _SHARE.fullmatch(text)
    condition = condition_in(f"{share[1]}{float(share[2]) / 100:g}" if share else text)
    if condition is None or condition.signal.place:
        raise SettingsError(f"stop_on takes {FORMS}, got {text!r}.")
    quantities = _names(condition.signal.quantity, known, text)
    if not math.isfinite(condition.limit):
        raise SettingsError(f"stop_on compares with a finite number, got {text!r}.")
    return StopCondition(said, "comparison", quantities, condition)


def _names(name: str, known: tuple[str, ...], text: str) -> tuple[str, ...]:
    """The quantities that a name stands for."""
    if name not in known:
        raise SettingsError(f"stop_on can compare {', '.join(known)}; got {name!r} in {text!r}.")
    return SHORT_NAMES.get(name, (name,))
