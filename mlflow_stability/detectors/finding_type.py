"""Types of findings: names, words, severities and remedies, as classes in the files of `kinds`.

The catalog collects them; `explain`, the manual, the reports and the tests take their texts from here and from the
docstrings. A number is written once, in the field of a threshold; texts name it in braces:

``{threshold}`` is the number as it is, ``{kept:percent}`` a share, ``{smallest_rise:rise}`` what a ratio is above 1,
``{train_fell:fall}`` what it is below 1, ``{jump:exp}`` the ratio of a number of nats, ``{jump:exp_rise}`` what that is
above 1, ``{threshold:sure}`` what makes a finding critical, ``{tails[0]}`` one of several. Names in capitals are
constants of the module; ``{baseline.TAIL}`` is one of a module of `detectors`. An unknown name is an error when the
class is made.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from importlib import import_module
from importlib.util import find_spec
from inspect import cleandoc
from string import Formatter
from textwrap import fill
from typing import Any, ClassVar, Literal

from mlflow_stability.vocabulary.judging import FACTORS
from mlflow_stability.vocabulary.result import Remedy
from mlflow_stability.vocabulary.result.finding import Severity

Moves = Literal["times", "power", "inverse"]
"""How a threshold follows the sensitivity: ``times`` for σ, nats and shares that a value must exceed; ``power`` for a
value as a multiple of a level; ``inverse`` for what a value must stay below."""


class Symptom(Enum):
    """Which causes are looked for; each check of causes declares its symptoms."""

    NONE = "none"  # no cause is looked for
    NON_FINITE = "non-finite"
    RISING = "rising"
    VANISHING = "vanishing"
    STUCK = "stuck"
    DEAD_LAYER = "dead layer"
    LEARNING_RATE = "learning rate"
    LARGE_UPDATES = "large updates"
    TINY_UPDATES = "tiny updates"
    REPEATED_DATA = "repeated data"
    OVERFITTING = "overfitting"
    INSIDE = "inside"
    ENDED = "ended"


class Instability(Enum):
    """Whether a finding is part of an unstable training. Such findings lead to each other, and are reported as one."""

    NONE = "none"  # it is about progress, speed, memory or settings
    SIGN = "sign"  # the step was skipped, or the weights may still be good
    HARMFUL = "harmful"  # the weights of its step may be harmed: a state that is not confirmed as good yet is given up


DEFAULT_ORDER = 10_000  # the `order` of types that do not set one


@dataclass(frozen=True, slots=True)
class FindingType:
    """A type of finding. Its docstring says what it sees, why it matters, what to try, when it is wrong."""

    kind: ClassVar[str]  # the name of the finding: ``nan_detected``
    noun: ClassVar[str] = ""  # one finding in a sentence, with an article: "a loss spike"; empty: the words of `kind`
    plural: ClassVar[str] = ""  # several, after a number: "loss spikes"; empty where it is not counted, such as NaN
    question: ClassVar[str] = ""  # its question in checklists, which findings answer: "Are units dead?"; or empty
    check_by_hand: ClassVar[str] = ""  # how to answer it without a recording; thresholds in braces, as above
    rule: ClassVar[str] = ""  # name of the way to find it: empty for our own, ``classic`` for the one in general use
    severities: ClassVar[tuple[Severity, ...]] = (Severity.WARNING,)  # those that it can have, the mildest first
    experimental: ClassVar[bool] = False  # whether its false-alarm rate is unknown; then it is INFO everywhere
    remedies: ClassVar[tuple[Remedy, ...]] = ()  # what to try, most likely first
    symptom: ClassVar[Symptom] = Symptom.NONE
    instability: ClassVar[Instability] = Instability.NONE
    of_setup: ClassVar[bool] = False  # whether it is a mistake in the set-up, which leaves a training stable
    of_hardware: ClassVar[bool] = False  # whether it is about the machine, not about the training
    order: ClassVar[int] = DEFAULT_ORDER  # detectors run, and types are listed, by this number, then by name
    by_sensitivity: ClassVar[Mapping[str, Moves]] = {}  # which of its thresholds follow the sensitivity, and how

    def __init_subclass__(cls) -> None:
        """Put the thresholds into the texts; not again when `dataclass` makes the class a second time, with slots."""
        if "__dataclass_fields__" in vars(cls):
            return
        thresholds = defaults_of(cls)
        cls.__doc__ = rendered(cls.__doc__ or "", thresholds, cls.__module__) or None
        cls.check_by_hand = " ".join(rendered(cls.check_by_hand, thresholds, cls.__module__).split())


_WIDTH = 116
_NO_BREAK = "\N{NO-BREAK SPACE}"
_SURE = FACTORS["low"]
_FORMATS: Mapping[str, Callable[[float], str]] = {
    "": lambda value: _plain(value),
    "percent": lambda value: _percent(value),
    "points": lambda value: _plain(100 * value),
    "one_in": lambda value: _plain(1 / value),
    "rise": lambda value: _percent(value - 1),
    "fall": lambda value: _percent(1 - value),
    "exp": lambda value: _plain(math.exp(value)),
    "exp_rise": lambda value: _percent(_short(math.expm1(value))),
    "exp_fall": lambda value: _percent(_short(-math.expm1(-value))),
    "exp_left": lambda value: _percent(_short(math.exp(-value))),
    "sure": lambda value: _plain(value * _SURE),
    "sure_power": lambda value: _plain(value**_SURE),
    "sure_rise": lambda value: _percent(_short(value**_SURE - 1)),
    "sure_below": lambda value: _percent(value / _SURE),
}


def rendered(text: str, thresholds: Mapping[str, Any], module: str) -> str:
    """Return the text with the values of thresholds and constants, and its paragraphs filled again."""
    if "{" not in text:
        return text
    constants = {name: value for name, value in vars(import_module(module)).items() if name.isupper()}
    numbers = _Numbers().vformat(cleandoc(text), (), {**constants, **thresholds})
    paragraphs = numbers.replace(" %", f"{_NO_BREAK}%").split("\n\n")
    filled = "\n\n".join(fill(paragraph, _WIDTH, break_on_hyphens=False) for paragraph in paragraphs)
    return filled.replace(_NO_BREAK, " ")


def defaults_of(cls: type) -> dict[str, Any]:
    """Return the defaults of the annotated fields of a class that is not a dataclass yet, and of inherited ones."""
    inherited = {name: field.default for name, field in getattr(cls, "__dataclass_fields__", {}).items()}
    return inherited | {name: vars(cls)[name] for name in vars(cls).get("__annotations__", ()) if name in vars(cls)}


class _Numbers(Formatter):
    def get_value(self, key: int | str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:  # noqa: ARG002
        if key in kwargs:
            return kwargs[str(key)]
        module = f"{__package__}.{key}"
        if find_spec(module) is None:
            raise NameError(f"Documentation names {key!r}, which is neither a threshold nor a constant.")
        return import_module(module)

    def format_field(self, value: Any, format_spec: str) -> str:
        return _FORMATS[format_spec](value)


def _short(share: float) -> float:
    """Round to two digits: what is computed from a threshold need not be exact."""
    return float(f"{share:.2g}")


def _percent(share: float) -> str:
    return f"{_plain(100 * share)} %"


def _plain(value: float) -> str:
    """Return at most three significant digits: ``8``, ``1,000``, ``0.05``, ``1e-7``."""
    rounded = float(f"{value:.3g}") if abs(value) < 1000 else round(value)
    return f"{int(rounded):,}" if rounded == int(rounded) else f"{rounded:g}".replace("e-0", "e-")
