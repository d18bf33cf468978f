"""Puts the thresholds of a class into its documentation, so that each number stands once: in its field.

In: a text with names in braces. Out: the text with numbers. ``{threshold}`` is the number as it is, ``{kept:percent}``
a share, ``{smallest_rise:rise}`` what a ratio is above 1, ``{train_fell:fall}`` what it is below 1, ``{jump:exp}`` the
ratio of a number of nats, ``{jump:exp_rise}`` what that is above 1, ``{threshold:sure}`` what makes a finding critical,
``{tails[0]}`` one of several. Names in capitals are constants of the module, ``{baseline.TAIL}`` of one of the engine.
Guarantees: a name that there is not is an error when the class is made.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from inspect import cleandoc
from string import Formatter
from textwrap import fill
from types import ModuleType
from typing import Any

from mlflow_stability.vocabulary.sensitivity import FACTORS

ROOM = "mlflow_stability.detectors"

_WIDTH = 116
_NO_BREAK = "\N{NO-BREAK SPACE}"
_SURE = FACTORS["low"]
_FORMS: Mapping[str, Callable[[float], str]] = {
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
"""What stands behind the colon of a name."""


def rendered(text: str, thresholds: Mapping[str, Any], module: str) -> str:
    """The text with the values of these thresholds, and of constants; its paragraphs are filled again."""
    if "{" not in text:
        return text
    numbers = _Numbers().vformat(cleandoc(text), (), {**_constants(module), **thresholds})
    paragraphs = numbers.replace(" %", f"{_NO_BREAK}%").split("\n\n")
    filled = "\n\n".join(fill(paragraph, _WIDTH, break_on_hyphens=False) for paragraph in paragraphs)
    return filled.replace(_NO_BREAK, " ")


def defaults_of(cls: type) -> dict[str, Any]:
    """The defaults of the annotated fields of a class that is not a dataclass yet, and of those that it inherits."""
    inherited = {name: field.default for name, field in getattr(cls, "__dataclass_fields__", {}).items()}
    return inherited | {name: vars(cls)[name] for name in vars(cls).get("__annotations__", ()) if name in vars(cls)}


class _Numbers(Formatter):
    def get_value(self, key: int | str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:  # noqa: ARG002
        return kwargs[str(key)] if key in kwargs else _shared(str(key))

    def format_field(self, value: Any, format_spec: str) -> str:
        return _FORMS[format_spec](value)


def _constants(module: str) -> dict[str, Any]:
    return {name: value for name, value in vars(import_module(module)).items() if name.isupper()}


def _shared(name: str) -> ModuleType:
    """The module that holds a number which several detectors share: ``{loss_fall.LEARNT:percent}``."""
    if find_spec(f"{ROOM}.{name}") is not None:
        return import_module(f"{ROOM}.{name}")
    raise NameError(f"Documentation names {name!r}, which is neither a threshold nor a constant.")


def _short(share: float) -> float:
    """Two digits: what is computed from a threshold need not be exact."""
    return float(f"{share:.2g}")


def _percent(share: float) -> str:
    return f"{_plain(100 * share)} %"


def _plain(value: float) -> str:
    """At most three digits behind the first: ``8``, ``1,000``, ``0.05``, ``1e-7``."""
    rounded = float(f"{value:.3g}") if abs(value) < 1000 else round(value)
    return f"{int(rounded):,}" if rounded == int(rounded) else f"{rounded:g}".replace("e-0", "e-")
