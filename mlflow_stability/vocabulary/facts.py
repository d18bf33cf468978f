"""What a finding knows, as frozen dataclasses with types and units; sentences are made from them last."""

from __future__ import annotations

import enum
import inspect
import math
import types
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field, fields, is_dataclass
from functools import cache
from typing import Any, ClassVar, Union, get_args, get_origin, get_type_hints


class TextEnum(str, enum.Enum):
    """`enum.StrEnum`, which Python 3.10 does not have: a member is, and is shown as, its value."""

    def __str__(self) -> str:
        return str(self.value)


def _to_json(value: Any) -> Any:
    """Enums become their values, tuples lists, and non-finite numbers the strings "nan", "inf" and "-inf"."""
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, float):
        return value if math.isfinite(value) else repr(value)
    if is_dataclass(value):
        return {member.name: _to_json(getattr(value, member.name)) for member in fields(value)}
    if isinstance(value, tuple | list):
        return [_to_json(part) for part in value]
    return value


def _from_json(wanted: Any, value: Any) -> Any:
    """Read what `_to_json` wrote as the wanted type; names that are no field are ignored.

    Raises ValueError, TypeError or KeyError where the value is not of that type.
    """
    if get_origin(wanted) in (Union, types.UnionType):
        if value is None:
            return None
        return _from_json(next(kind for kind in get_args(wanted) if kind is not types.NoneType), value)
    if get_origin(wanted) is tuple:
        kinds = get_args(wanted)
        if len(kinds) == 2 and kinds[1] is Ellipsis:
            return tuple(_from_json(kinds[0], part) for part in value)
        return tuple(_from_json(kind, part) for kind, part in zip(kinds, value, strict=True))
    if isinstance(wanted, type) and is_dataclass(wanted):
        hints = field_types(wanted)
        return wanted(**{name: _from_json(hints[name], part) for name, part in value.items() if name in hints})
    if wanted is int and isinstance(value, bool | str):
        raise TypeError(f"{value!r} is not an integer")
    if wanted in (bool, str) and not isinstance(value, wanted):
        raise TypeError(f"{value!r} is not of type {wanted.__name__}")
    return wanted(value)


@cache
def field_types(cls: Any) -> dict[str, Any]:
    """Return the types of the fields of a dataclass that its constructor takes.

    `get_type_hints(cls)` raises in Python 3.10 where an attribute is a `ClassVar` without a type.
    """
    names = {member.name for member in fields(cls) if member.init}
    types_by_name: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        texts = {name: text for name, text in inspect.get_annotations(base).items() if name in names}
        types_by_name |= get_type_hints(types.SimpleNamespace(__annotations__=texts), vars(inspect.getmodule(base)))
    return types_by_name


_CLASSES: dict[str, type[Facts]] = {}


@dataclass(frozen=True, slots=True)
class Facts(ABC):
    """Base class: one small frozen dataclass for each type of finding.

    Fields are numbers, texts, enums, None, tuples of these and frozen dataclasses of these. A field that is
    added later has a default, so that earlier recordings can be read.
    """

    kind: ClassVar[str] = ""  # name in the JSON: the type of finding, where they are about one type

    metrics: ClassVar[tuple[str, ...] | Mapping[str, str]] = ()
    """The fields that are metrics of the finding, or name and field of each metric; empty: all numbers."""

    def __init_subclass__(cls) -> None:
        # No super(): `slots=True` makes a second class, which the first one's `super()` does not know.
        if cls.kind:
            _CLASSES[cls.kind] = cls

    @abstractmethod
    def sentence(self, step: int, unit: str = "step", /) -> str:
        """What happened, with numbers, in one sentence or two; `unit`: what the log calls a step."""

    def numbers(self) -> dict[str, float]:
        """The metrics of the finding, by name; those of a nested dataclass as ``name.field``."""
        numbers, metrics = _numbers_in(self), self.metrics
        if not metrics:
            return numbers
        fields_by_name = metrics if isinstance(metrics, Mapping) else {name: name for name in metrics}
        return {name: numbers[field] for name, field in fields_by_name.items() if field in numbers}

    @property
    def exceeds(self) -> float | None:
        """By how many times the threshold is exceeded; None where there is none."""
        return None

    @property
    def found_first(self) -> int | None:
        """The step of the first finding, where this one repeats it because it became worse; else None."""
        return None

    def as_json(self) -> dict[str, Any]:
        """The kind and the fields as JSON values, for `facts_from_json`."""
        return {"kind": self.kind, **_to_json(self)}


@dataclass(frozen=True, slots=True)
class OtherFacts(Facts):
    """Facts of a type that this version does not know."""

    values: dict[str, Any]  # The JSON object

    def __hash__(self) -> int:
        return hash(repr(sorted(self.values.items())))

    def sentence(self, _step: int, _unit: str = "step", /) -> str:
        """The values by name, because only a later version has the words."""
        return ", ".join(f"{name} {value}" for name, value in self.values.items())

    def numbers(self) -> dict[str, float]:
        return {name: float(value) for name, value in self.values.items() if _is_number(value)}

    def as_json(self) -> dict[str, Any]:
        return self.values


def facts_from_json(values: dict[str, Any]) -> Facts:
    """Read the facts of a finding; unknown fields are ignored, unknown kinds become `OtherFacts`."""
    cls = _CLASSES.get(values.get("kind", ""))
    if cls is None:
        return OtherFacts(values)
    try:
        facts: Facts = _from_json(cls, values)
    except (TypeError, ValueError, KeyError):  # written by a version in which this type has other fields
        return OtherFacts(values)
    return facts


def classes_of_facts() -> dict[str, type[Facts]]:
    return dict(_CLASSES)


def _numbers_in(facts: Any) -> dict[str, float]:
    numbers: dict[str, float] = {}
    for member in fields(facts):
        value = getattr(facts, member.name)
        if _is_number(value):
            numbers[member.name] = float(value)
        elif is_dataclass(value):
            numbers |= {f"{member.name}.{name}": number for name, number in _numbers_in(value).items()}
    return numbers


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


SINCE = "since"  # metric of a finding that became worse: the step of the first finding


def times_beyond(value: float, threshold: float) -> float | None:
    """Return how many times a value is above or below a threshold; None where a ratio is not defined."""
    if not (math.isfinite(value) and value > 0 and threshold > 0):
        return None
    return max(value / threshold, threshold / value)


def rises_beyond(value: float, baseline: float, ratio: float) -> float | None:
    """Return the rise above a baseline as a multiple of this ratio, both as logarithms."""
    if not (ratio > 1 and baseline > 0 and value > 0):
        return None
    return abs(math.log(value / baseline)) / math.log(ratio)


@dataclass(frozen=True, slots=True)
class LimitFacts(Facts):
    """A value that is beyond a threshold."""

    value: float  # The value, in the unit of its signal
    threshold: float  # The threshold, in the same unit
    _: KW_ONLY
    in_a_row: int = 1  # Number of such values in a row
    place: str = ""  # The module or layer of the value; empty: the whole model

    @property
    def exceeds(self) -> float | None:
        """By how many times the value is above or below the threshold."""
        return times_beyond(self.value, self.threshold)


@dataclass(frozen=True, slots=True)
class RiseFacts(Facts):
    """A value that is a multiple of its baseline."""

    value: float  # The value, in the unit of its signal
    baseline: float  # The value that is usual, in the same unit
    ratio: float  # The threshold, as a ratio to the baseline
    _: KW_ONLY
    place: str = ""  # The module or layer of the value; empty: the whole model

    @property
    def exceeds(self) -> float | None:
        """By how many times the rise is that of the threshold, both as logarithms."""
        return rises_beyond(self.value, self.baseline, self.ratio)


@dataclass(frozen=True, slots=True)
class LossTrouble:
    """What is wrong with a loss: it has risen, or has not fallen."""

    mean: float  # Running mean of the loss, in its unit
    lowest: float | None  # Its lowest level, in its unit; None where it has not fallen
    start: float  # Its level at the start, in its unit

    def __str__(self) -> str:
        """``loss 0.51, 1.4 times its lowest level``."""
        if self.lowest is None:
            return f"loss at {self.mean / self.start:.0%} of its start"
        if self.lowest <= 0:
            return f"loss {self.mean:.4g}, up from its lowest level of {self.lowest:.4g}"
        return f"loss {self.mean:.4g}, {self.mean / self.lowest:.3g} times its lowest level"


@dataclass(frozen=True)
class RepeatedFacts(Facts):
    """A finding that may be reported again later."""

    __slots__ = ()  # each subclass has the slots, so that it can have a second base class with fields

    found_first: int | None = field(default=None, kw_only=True)
    """The step at which it was found, where it goes on at a later one."""

    def numbers(self) -> dict[str, float]:
        """The metrics, and the step at which it was found first."""
        values = Facts.numbers(self)
        return values if self.found_first is None else values | {SINCE: float(self.found_first)}


@dataclass(frozen=True)
class LastingFacts(RepeatedFacts):
    """A finding that is reported again, as a warning, where it lasts."""

    __slots__ = ()

    @abstractmethod
    def statement(self, step: int, unit: str, /) -> str:
        """What was found, without a full stop."""

    def sentence(self, step: int, unit: str = "step", /) -> str:
        """What was found, and since when, where it lasts."""
        since = "" if self.found_first is None else f"; so since {unit} {self.found_first}"
        return f"{self.statement(step, unit)}{since}."


@dataclass(frozen=True)
class FollowedFacts(RepeatedFacts):
    """A finding after which the loss is followed; a loss that gets worse makes it a warning."""

    __slots__ = ()

    loss_since: LossTrouble | None = field(default=None, kw_only=True)
    """What is wrong with the loss since then, where that made it a warning."""

    @abstractmethod
    def statement(self, step: int, unit: str, /) -> str:
        """What was found, without what the loss did afterwards."""

    def sentence(self, step: int, unit: str = "step", /) -> str:
        """What was found, and what is wrong with the loss since then."""
        if self.loss_since is None or self.found_first is None:
            return self.statement(step, unit)
        return f"{self.statement(self.found_first, unit)} Since then: {self.loss_since}."


@dataclass(frozen=True, slots=True)
class LossRiseFacts(Facts):
    """A loss that is above what was normal."""

    value: float  # The loss, in its unit
    baseline: float  # The loss that was normal before, in its unit


@dataclass(frozen=True, slots=True)
class PeakFacts(Facts):
    """The highest value of a rise, as the curve shows it."""

    highest: float  # In the unit of the metric

    def sentence(self, _step: int, _unit: str = "step", /) -> str:
        """``maximum 9.12``."""
        return f"maximum {self.highest:.4g}"


@dataclass(frozen=True, slots=True)
class LossEndFacts(Facts):
    """A loss whose whole curve shows that it rose and did not come down again."""

    signal: str  # The loss, by the name that the log gives it
    last: float  # The loss at its end, in its unit
    highest: float  # The highest loss since it rose, in its unit
