"""What a finding knows, as fields with types; its sentence is made from them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, ClassVar

from mlflow_stability.vocabulary.facts.json_codec import decode, encode

_CLASSES: dict[str, type[Facts]] = {}


@dataclass(frozen=True, slots=True)
class Facts(ABC):
    """Base class: one small frozen dataclass for each type of finding.

    Fields are numbers, texts, enums, None, tuples of these and frozen dataclasses of these. A field that is
    added later has a default, so that earlier recordings can be read.
    """

    kind: ClassVar[str] = ""
    """The name by which they are read back: the type of finding, where they are about one type."""

    metrics: ClassVar[tuple[str, ...] | Mapping[str, str]] = ()
    """The fields that are metrics of the finding, or name and field of each metric; empty: all numbers."""

    def __init_subclass__(cls) -> None:
        # Not super(): `slots=True` makes a second class, of which the first one's `super()` knows nothing.
        if cls.kind:
            _CLASSES[cls.kind] = cls

    @abstractmethod
    def sentence(self, step: int, unit: str = "step", /) -> str:
        """What happened, with numbers, in one sentence or two; `unit`: what the log calls a step."""

    def numbers(self) -> dict[str, float]:
        """The metrics of the finding, by name; those of a nested dataclass as ``name.field``."""
        found, metrics = _numbers_in(self), self.metrics
        if not metrics:
            return found
        fields_by_name = metrics if isinstance(metrics, Mapping) else {name: name for name in metrics}
        return {name: found[field] for name, field in fields_by_name.items() if field in found}

    @property
    def exceeds(self) -> float | None:
        """By how many times the threshold is exceeded; None where nothing is compared with one."""
        return None

    @property
    def found_first(self) -> int | None:
        """The step at which it was found first, of what was found again because it became worse."""
        return None

    def as_json(self) -> dict[str, Any]:
        """The kind and the fields as JSON has them; `facts_from_json` reads them back."""
        return {"kind": self.kind, **encode(self)}


@dataclass(frozen=True, slots=True, eq=False)
class OtherFacts(Facts):
    """Facts of a type that this version does not know."""

    values: dict[str, Any]
    """As they were read."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OtherFacts) and self.values == other.values

    def __hash__(self) -> int:
        return hash(repr(sorted(self.values.items())))

    def sentence(self, _step: int, _unit: str = "step", /) -> str:
        """The values, by name: a later version has the words."""
        return ", ".join(f"{name} {value}" for name, value in self.values.items())

    def numbers(self) -> dict[str, float]:
        """The numbers among the values."""
        return {name: float(value) for name, value in self.values.items() if _is_number(value)}

    def as_json(self) -> dict[str, Any]:
        """The values."""
        return self.values


def facts_from_json(values: dict[str, Any]) -> Facts:
    """Read the facts of a finding; fields that this version does not know are passed over."""
    cls = _CLASSES.get(values.get("kind", ""))
    if cls is None:
        return OtherFacts(values)
    try:
        facts: Facts = decode(cls, values)
    except (TypeError, ValueError, KeyError):  # written by a version in which this type has other fields
        return OtherFacts(values)
    return facts


def classes_of_facts() -> dict[str, type[Facts]]:
    """All classes, by kind."""
    return dict(_CLASSES)


def _numbers_in(facts: Any) -> dict[str, float]:
    found: dict[str, float] = {}
    for field in fields(facts):
        value = getattr(facts, field.name)
        if _is_number(value):
            found[field.name] = float(value)
        elif is_dataclass(value):
            found |= {f"{field.name}.{name}": number for name, number in _numbers_in(value).items()}
    return found


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
