"""What to do about a finding: an action with its numbers, and its sentence."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from numbers import Integral
from typing import Any, TypeAlias

from mlflow_stability.vocabulary.result.action import Action
from mlflow_stability.vocabulary.result.topic import Topic

Amount: TypeAlias = float | tuple[float, float]  # a number, or the ends of a range
SMALLEST_CLIPPING_NORM = 1e-6  # a smaller usual norm is that of a training with nothing left to learn
CLEARLY_ABOVE_USUAL = 2.0  # minimum ratio of an exploded norm to the usual one for a clipping threshold between


@dataclass(frozen=True, slots=True)
class Remedy:
    """One action with its numbers; `str(remedy)` is its sentence.

    Example:

        >>> str(Remedy(Action.LOWER_LEARNING_RATE, target=0.003, factor=10.0, baseline=0.03))
        'Lower the learning rate from 0.03 to about 0.003, 10 times less.'
    """

    action: Action  # what to do
    target: Amount | None = None
    """The value to go to: a learning rate, a gradient norm, beta2, a share of the steps in percent."""
    factor: Amount | None = None  # by how many times to change the value; of a range any number in it
    baseline: float | None = None  # the present value, where that is known
    step: int | None = None  # the step that it is about
    unit: str = "step"  # what the log calls a step: ``epoch`` where it counts nothing else
    module: str = ""  # the module, the optimizer or the schedule that it is about
    path: str = ""  # the file that the batch is saved in
    text: str = ""  # the sentence of `Action.IN_WORDS`
    conditional: bool = False  # whether the run does not show that it has what the action needs
    alternative: Remedy | None = None  # what may be done instead

    @property
    def topic(self) -> Topic | None:
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
        sentence = template.format(**self._parts())
        if self.alternative is None:
            return sentence
        other = self.alternative.sentence
        return f"{sentence.removesuffix('.')}, or {other[0].lower()}{other[1:]}"

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
        if isinstance(self.target, tuple):
            return ""
        if self.target is None:
            return "" if self.baseline is None else f" at less than {self.baseline:.3g}"
        if self.baseline is None:
            return f" at {float(f'{self.target:.3g}')}"
        return f" at {self.target:.3g} instead of {self.baseline:.3g}"

    def __str__(self) -> str:
        return self.sentence

    def as_json(self) -> dict[str, Any]:
        """The action, the fields that are set, and the sentence, as JSON can have them."""
        values: dict[str, Any] = {"action": self.action.name.lower()}
        for field in fields(self)[1:]:
            value = getattr(self, field.name)
            if value != field.default:
                values[field.name] = value.as_json() if isinstance(value, Remedy) else _plain(value)
        return {**values, "sentence": self.sentence}


def clipping_norm(usual: float, exploded: float) -> float | None:
    """Return at which norm to clip: the usual one, if the norm that exploded is clearly above it; else None."""
    exists = SMALLEST_CLIPPING_NORM <= usual < math.inf and exploded >= CLEARLY_ABOVE_USUAL * usual
    return float(f"{usual:.2g}") if exists else None


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
    """Return the remedies without those about these topics; of one with an alternative, what is left of the two."""
    kept = []
    for remedy in remedies:
        other = remedy.alternative
        if other is not None and other.topic in topics:
            other = None
        if remedy.topic not in topics:
            kept.append(replace(remedy, alternative=other))
        elif other is not None:
            kept.append(other)
    return tuple(kept)


CLIP_GRADIENTS = Remedy(Action.CLIP_GRADIENTS)
LOWER_RATE = Remedy(Action.LOWER_LEARNING_RATE)
LOWER_RATE_2_TO_5 = Remedy(Action.LOWER_LEARNING_RATE, factor=(2.0, 5.0))
LOWER_RATE_3_TO_10 = Remedy(Action.LOWER_LEARNING_RATE, factor=(3.0, 10.0))
LOWER_RATE_5_TO_10 = Remedy(Action.LOWER_LEARNING_RATE, factor=(5.0, 10.0))
LOWER_RATE_OR_CLIP = replace(LOWER_RATE, alternative=CLIP_GRADIENTS)
LOWER_RATE_2_TO_5_OR_CLIP = replace(LOWER_RATE_2_TO_5, alternative=CLIP_GRADIENTS)
LOWER_RATE_3_TO_10_OR_WARM_UP = Remedy(Action.LOWER_RATE_OR_LENGTHEN_WARM_UP, factor=(3.0, 10.0))
RAISE_RATE_5_TO_10 = Remedy(Action.RAISE_LEARNING_RATE, factor=(5.0, 10.0))
RAISE_OR_LOWER_RATE = Remedy(Action.RAISE_OR_LOWER_LEARNING_RATE, factor=10.0)
RAISE_TEMPERATURE_2_TO_3 = Remedy(Action.RAISE_TEMPERATURE, factor=(2.0, 3.0))
LOWER_BETA2 = Remedy(Action.LOWER_BETA2, target=(0.95, 0.98))
WARM_UP_LEARNING_RATE = Remedy(Action.WARM_UP_LEARNING_RATE, target=(1.0, 5.0))
FIT_SCHEDULE = Remedy(Action.MATCH_SCHEDULE_LENGTH, alternative=Remedy(Action.STEP_SCHEDULE_PER_EPOCH))
_CLIP_AT_1 = replace(CLIP_GRADIENTS, target=1.0)
_WITH_NUMBERS = (
    _CLIP_AT_1,
    replace(LOWER_RATE, alternative=_CLIP_AT_1),
    replace(LOWER_RATE_2_TO_5, alternative=_CLIP_AT_1),
    LOWER_RATE_2_TO_5,
    LOWER_RATE_3_TO_10,
    LOWER_RATE_5_TO_10,
    LOWER_RATE_OR_CLIP,
    LOWER_RATE_2_TO_5_OR_CLIP,
    LOWER_RATE_3_TO_10_OR_WARM_UP,
    RAISE_RATE_5_TO_10,
    RAISE_OR_LOWER_RATE,
    RAISE_TEMPERATURE_2_TO_3,
    LOWER_BETA2,
    WARM_UP_LEARNING_RATE,
    FIT_SCHEDULE,
)
"""Those that older recordings have as sentences."""


def read_remedies(recorded: Iterable[str | Mapping[str, Any]]) -> tuple[Remedy, ...]:
    """Read what `Remedy.as_json` wrote, and the sentences that older versions wrote.

    Sentences and unknown actions become `Action.IN_WORDS`, unless a remedy of this version has the same sentence.
    """
    return tuple(map(_read_remedy, recorded))


def _read_remedy(recorded: str | Mapping[str, Any]) -> Remedy:
    if isinstance(recorded, str):
        return _remedies_by_sentence().get(recorded) or Remedy(Action.IN_WORDS, text=recorded)
    action = Action.__members__.get(str(recorded["action"]).upper())
    if action is None:  # of a later version
        return Remedy(Action.IN_WORDS, text=str(recorded["sentence"]))
    values = {name: recorded[name] for name in _READERS if recorded.get(name) is not None}
    return Remedy(action, **{name: _READERS[name](value) for name, value in values.items()})


def _read_amount(recorded: Any) -> Amount:
    if isinstance(recorded, list | tuple):
        low, high = recorded
        return float(low), float(high)
    return float(recorded)


_READERS: Mapping[str, Callable[[Any], Any]] = {
    "target": _read_amount,
    "factor": _read_amount,
    "baseline": float,
    "step": int,
    "unit": str,
    "module": str,
    "path": str,
    "text": str,
    "conditional": bool,
    "alternative": _read_remedy,
}


@cache
def _remedies_by_sentence() -> Mapping[str, Remedy]:
    return {str(remedy): remedy for remedy in (*map(Remedy, Action), *_WITH_NUMBERS)}
