"""Conditions that end a training: ``stop_on=("nonfinite", "grad_norm>100", "val_loss plateau 5")``.

Guarantees: a misspelt condition is refused at once; loss, learning rate and loss scale are judged before the step.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from math import fsum, isfinite
from statistics import median
from typing import Literal

from torch import Tensor
from torch.optim import Optimizer

from mlflow_stability.errors import SettingsError, TrainingDiverged
from mlflow_stability.kinds.reported.autopilot import EarlyStopFacts
from mlflow_stability.probes.step.capture import StepCapture, norm_before_clipping
from mlflow_stability.vocabulary.measured.signal import Condition, Signal, StepReading, parse_condition

BEFORE_STEP = ("loss", "grad_norm", "learning_rate", "loss_scale")  # known before a step is taken
AFTER_STEP = ("grad_norm_clipped", "micro_batches", "skipped_steps", "step_time")
SHORT_NAMES = {"throughput": ("tokens_per_second", "samples_per_second"), "memory": ("memory_share",)}
"""Quantities that go by several signals."""
MEASURED = ("tokens_per_second", "samples_per_second", "memory_share", "memory_allocated", "host_memory")
VALIDATION = "val_loss"  # logged to MLflow by the script
QUANTITIES = (*BEFORE_STEP, *AFTER_STEP, *MEASURED, *SHORT_NAMES, VALIDATION)
NONFINITE = ("loss", "grad_norm", "grad_norm_clipped")  # what ``nonfinite`` checks
USUAL_OF, USUAL_FROM = 100, 20  # number of values whose median is the normal value
LOW_IN_A_ROW = 5  # number of consecutive low values; throughput is measured at every tenth step
_RELATIVE = re.compile(r"\s*([A-Za-z_]\w*)\s*([+-])\s*(\d+(?:\.\d+)?)\s*%\s*")
_MULTIPLE = re.compile(r"\s*([A-Za-z_]\w*)\s*>\s*(\d+(?:\.\d+)?)\s*x\s*")
_PLATEAU = re.compile(r"\s*([A-Za-z_]\w*)\s+plateau\s+(\d+)\s*")
_SHARE = re.compile(r"(.*[<>]=?)\s*(\d+(?:\.\d+)?)\s*%\s*")
FORMS = "'nonfinite', 'loss>50', 'loss>100x', 'val_loss plateau 5', 'val_loss+10%', 'throughput-80%' or 'memory>90%'"


@dataclass(frozen=True, slots=True)
class StopCondition:
    text: str
    form: Literal["nonfinite", "comparison", "multiple", "rise", "fall", "plateau"] = "nonfinite"
    quantities: tuple[str, ...] = NONFINITE
    condition: Condition | None = None  # of a comparison
    share: float = 0.0  # relative rise above the best value, or fall below the normal one; the factor of a multiple
    patience: int = 0  # of a plateau: values without a new best one

    def is_met(self, quantity: str, value: float) -> bool:
        if quantity not in self.quantities:
            return False
        if self.form == "nonfinite":
            return not math.isfinite(value)
        return self.condition is not None and self.condition.holds(value)


@dataclass(frozen=True, slots=True)
class Stop:
    condition: StopCondition
    step: int
    reason: str  # ``loss is 60``
    before_step: bool = False  # the step is not taken

    @property
    def facts(self) -> EarlyStopFacts:
        return EarlyStopFacts(self.condition.text, self.reason, self.before_step)

    @property
    def error(self) -> TrainingDiverged:
        return TrainingDiverged(self.facts.sentence(self.step), f"{self.reason} (stop_on={self.condition.text})")


def stop_conditions(texts: str | Iterable[str]) -> tuple[StopCondition, ...]:
    """Parse the conditions that a user wrote."""
    return tuple(_read(text) for text in ((texts,) if isinstance(texts, str) else texts))


@dataclass(slots=True)
class _Course:
    """History of one signal for one condition."""

    best: float = math.inf
    since_best: int = 0
    usual: deque[float] = field(default_factory=lambda: deque(maxlen=USUAL_OF))
    low: int = 0
    low_since: int = 0  # step of the first of the low values


class StopRules:
    def __init__(self, conditions: Iterable[StopCondition]) -> None:
        self._conditions = tuple(conditions)
        at_once = [condition for condition in self._conditions if condition.form in ("nonfinite", "comparison")]
        self._before = tuple(condition for condition in at_once if set(condition.quantities) & set(BEFORE_STEP))
        self._courses: dict[tuple[str, Signal], _Course] = {}
        compared = {quantity for condition in self._before for quantity in condition.quantities}
        self.looks_before = tuple(quantity for quantity in BEFORE_STEP if quantity in compared)
        """Quantities to be known before a step."""

    def before_step(self, step: int, values: Mapping[str, float], *, is_guarded: bool) -> Stop | None:
        """Judge a step before it is taken; `is_guarded`: the guard handles non-finite values."""
        for condition in self._before:
            if condition.form == "nonfinite" and is_guarded:
                continue
            for quantity, value in values.items():
                if condition.is_met(quantity, value):
                    return Stop(condition, step, f"{quantity} is {value:.6g}", before_step=True)
        return None

    def after_step(self, reading: StepReading, *, skipped: bool = False) -> Stop | None:
        """Judge what was measured at a step; `skipped`: by a loss scaler that searched its scale, no reason to stop."""
        for condition in self._conditions:
            if skipped and condition.form == "nonfinite":
                continue
            for signal, value in zip(reading.signals, reading.values, strict=True):
                if signal.quantity in condition.quantities and (
                    reason := self._reason(condition, signal, value, reading.step)
                ):
                    return Stop(condition, reading.step, reason)
        return None

    def _reason(self, condition: StopCondition, signal: Signal, value: float, step: int) -> str:
        """Return the reason to stop; empty without one."""
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
    """Compare with the median of earlier values, however few."""
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


def _read(text: str) -> StopCondition:
    condition_text = text.strip()
    if condition_text == "nonfinite":
        return StopCondition(condition_text)
    if match := _PLATEAU.fullmatch(text):
        name, patience = match[1], int(match[2])
        if patience < 1:
            raise SettingsError(f"stop_on needs at least 1 value for a plateau, got {text!r}.")
        return StopCondition(condition_text, "plateau", _names(name, text), patience=patience)
    if match := _RELATIVE.fullmatch(text):
        name, sign, percent = match[1], match[2], float(match[3])
        if not percent > 0 or (sign == "-" and percent >= 100):
            raise SettingsError(f"stop_on takes a fall by less than 100 % or a rise by more than 0 %, got {text!r}.")
        return StopCondition(condition_text, "rise" if sign == "+" else "fall", _names(name, text), share=percent / 100)
    if match := _MULTIPLE.fullmatch(text):
        name, factor = match[1], float(match[2])
        if not factor > 1:
            raise SettingsError(f"stop_on takes a multiple above 1, got {text!r}.")
        return StopCondition(condition_text, "multiple", _names(name, text), share=factor)
    share = _SHARE.fullmatch(text)
    condition = parse_condition(f"{share[1]}{float(share[2]) / 100:g}" if share else text)
    if condition is None or condition.signal.place:
        raise SettingsError(f"stop_on takes {FORMS}, got {text!r}.")
    quantities = _names(condition.signal.quantity, text)
    if not math.isfinite(condition.limit):
        raise SettingsError(f"stop_on compares with a finite number, got {text!r}.")
    return StopCondition(condition_text, "comparison", quantities, condition)


def _names(name: str, text: str) -> tuple[str, ...]:
    if name not in QUANTITIES:
        raise SettingsError(f"stop_on can compare {', '.join(QUANTITIES)}; got {name!r} in {text!r}.")
    return SHORT_NAMES.get(name, (name,))


def values_before_step(
    optimizer: Optimizer, capture: StepCapture, norm: Tensor | None, wanted: Collection[str]
) -> dict[str, float]:
    """Return loss, gradient norm before clipping, learning rate and loss scale, as far as wanted.

    `norm`: of the gradients that this optimizer is given. Only what is wanted is waited for.
    """
    values: dict[str, float] = {}
    if "loss" in wanted and capture.sure_losses:
        losses = [float(loss) for loss in capture.sure_losses]
        values["loss"] = fsum(losses) if all(map(isfinite, losses)) else sum(losses)
    if "grad_norm" in wanted and norm is not None:
        numbers: list[float] = []
        for clip in capture.clips:
            numbers += (float(clip.norm), 1.0 if clip.scale is None else float(clip.scale))
        before = norm_before_clipping(capture, numbers) if numbers else None
        values["grad_norm"] = float(norm) if before is None else before
    if "learning_rate" in wanted:
        values["learning_rate"] = max(float(group.get("lr") or 0.0) for group in optimizer.param_groups)
    if "loss_scale" in wanted and capture.loss_scale is not None:
        values["loss_scale"] = float(capture.loss_scale)
    return values
