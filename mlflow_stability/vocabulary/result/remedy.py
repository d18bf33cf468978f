"""What to do about one finding: an action with its numbers, and its sentence."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from numbers import Integral
from typing import Any, TypeAlias

from mlflow_stability.vocabulary.result.action import Action
from mlflow_stability.vocabulary.result.topic import Topic

Amount: TypeAlias = float | tuple[float, float]
"""A number, or the ends of a range."""


@dataclass(frozen=True, slots=True)
class Remedy:
    """One action with its numbers; `str(remedy)` is its sentence."""

    action: Action
    """What to do."""
    target: Amount | None = None
    """The value to go to: a learning rate, a gradient norm, beta2, a share of the steps in percent."""
    factor: Amount | None = None
    """By how many times to change the value; of a range any number in it."""
    baseline: float | None = None
    """The present value, where that is known."""
    step: int | None = None
    """The step that it is about."""
    unit: str = "step"
    """What the log calls a step: ``epoch`` where it counts nothing else."""
    module: str = ""
    """The module, the optimizer or the schedule that it is about."""
    path: str = ""
    """The file that the batch is saved in."""
    text: str = ""
    """The sentence of `Action.IN_WORDS`."""
    conditional: bool = False
    """Whether the run does not show that it has what the action needs."""
    alternative: Remedy | None = None
    """What may be done instead."""

    @property
    def topic(self) -> Topic | None:
        """What it is about."""
        return self.action.topic

    @property
    def exactness(self) -> int:
        """2: names the value to go to; 1: names a factor, a step or a file; 0: only what to do."""
        if self.target is not None:
            return 2
        return int(self.factor is not None or self.step is not None or bool(self.path))

    @property
    def change(self) -> str:
        """From which value to which, or by how many times; empty where neither is known."""
        factor, target = self.factor, self.target
        if isinstance(factor, tuple):
            return "by a factor of {:g} to {:g}".format(*factor)
        if self.baseline is None or target is None or isinstance(target, tuple):
            return "" if factor is None else f"by a factor of about {_times(factor)}"
        return f"from {self.baseline:.3g} to {'' if factor is None else 'about '}{target:.3g}"

    @property
    def sentence(self) -> str:
        """What to do, in one sentence."""
        template = self.action.sentence_if_unknown if self.conditional else self.action.sentence
        said = template.format(**self._parts())
        if self.alternative is None:
            return said
        other = self.alternative.sentence
        return f"{said.removesuffix('.')}, or {other[0].lower()}{other[1:]}"

    def _parts(self) -> Mapping[str, str]:
        low, high = self.target if isinstance(self.target, tuple) else (math.nan, math.nan)
        return {
            "change": f" {self.change}{self._beside_change()}" if self.change else "",
            "factor": f"{self.factor:g}" if isinstance(self.factor, float) else "",
            "limit": self._limit(),
            "until": "" if self.step is None else f", as up to {self.unit} {self.step}",
            "range": f"{low:g}-{high:g}",
            "pair": f"({low:g}, {high:g})",
            "step": f"this {self.unit}" if self.step is None else f"{self.unit} {self.step}",
            "at": "" if self.step is None else f" at {self.unit} {self.step}",
            "saved": f" (saved as {self.path})" if self.path else "",
            "module": self.module,
            "of": f" ({self.module})" if self.module else "",
            "text": self.text,
        }

    def _beside_change(self) -> str:
        if self.target is None or isinstance(self.factor, tuple) or isinstance(self.target, tuple):
            return ""
        if self.factor is None:
            return ", which was stable"
        more = self.baseline is not None and self.target > self.baseline
        return f", {_times(self.factor)} times {'more' if more else 'less'}"

    def _limit(self) -> str:
        if self.target is None or isinstance(self.target, tuple):
            return ""
        if self.baseline is None:
            return f" at {float(f'{self.target:.3g}')}"
        return f" at {self.target:.3g} instead of {self.baseline:.3g}"

    def __str__(self) -> str:
        return self.sentence

    def as_json(self) -> dict[str, Any]:
        """The action, the fields that are set, and the sentence, as JSON can have them."""
        said: dict[str, Any] = {"action": self.action.name.lower()}
        for field in fields(self)[1:]:
            value = getattr(self, field.name)
            if value != field.default:
                said[field.name] = value.as_json() if isinstance(value, Remedy) else _plain(value)
        return {**said, "sentence": self.sentence}


def _times(factor: float) -> str:
    return f"{float(f'{factor:.2g}'):,.0f}" if factor >= 10 else f"{factor:.2g}"


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(number) for number in value]
    if isinstance(value, bool | str):
        return value
    if isinstance(value, Integral):  # numpy's too, which JSON does not know
        return int(value)
    return float(value) if math.isfinite(value) else str(float(value))


def without_topics(remedies: Iterable[Remedy], topics: Collection[Topic]) -> tuple[Remedy, ...]:
    """The remedies that are about none of these topics; of one with an alternative, what is left of the two."""
    left = []
    for remedy in remedies:
        other = remedy.alternative
        if other is not None and other.topic in topics:
            other = None
        if remedy.topic not in topics:
            left.append(replace(remedy, alternative=other))
        elif other is not None:
            left.append(other)
    return tuple(left)
