"""What each signal means: unit, topic of its charts, names in other tools, how its layers combine.

Each file that measures signals declares them in a tuple called ``SIGNALS``, where all share some fields by ``signals``.
These files are parsed, not imported, because most of them load torch, and reading a run back never does. So a
declaration holds literals alone.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

FOLDERS = ("probes", "session/recording", "session/autopilot", "tracking")  # where signals are measured
Interval = Literal["every step", "every 10 steps", "by layer", "forward pass"]
Combined = Literal["mean", "norm", "min", "max"]
_PACKAGE = Path(__file__).parents[2]
_DECLARATION = re.compile(r"^SIGNALS = (?:signals)?\((?:\n.*?^\)|.*\)$)", re.MULTILINE | re.DOTALL)
_DERIVED = re.compile(r"_(?:mean|min|max)$")


@dataclass(frozen=True, slots=True)
class SignalType:
    """One quantity, wherever it is measured."""

    quantity: str  # its name in the record
    meaning: str  # description, as the manual and other tools show it
    topic: str = ""  # topic of its charts, which MLflow draws in one section, and of the manual's table
    unit: str = "1"  # as OpenTelemetry writes units; ``1`` for plain numbers
    interval: Interval = "every 10 steps"  # table of the manual that lists it
    exported: str = ""  # name in Prometheus; empty: not exported
    exported_type: str = ""  # label `type` there, where several signals share the name
    by_device: bool = False  # whether it is measured for each device, with the label `gpu_id` there
    counter: bool = False  # whether it only grows
    by_layer: bool = False  # whether it is measured for each layer, too
    combined: Combined = "mean"  # how the layers of a block are combined
    summary: tuple[Combined, ...] = ()  # charts of all places together: ``("mean", "max")``
    every_place: bool = False  # whether each place has a chart, whatever their number
    of_steps_taken: bool = False  # whether a skipped step has no value
    left_out: Literal["", "zero", "nan"] = ""  # value that is not recorded: NaN where it does not apply, or zero

    @property
    def short_meaning(self) -> str:
        """The meaning up to the first semicolon, capitalised."""
        text = self.meaning.partition(";")[0]
        return f"{text[:1].upper()}{text[1:]}"


def signals(*types: SignalType, **shared: Any) -> tuple[SignalType, ...]:
    """Return the types with the fields that they share."""
    return tuple([replace(signal, **shared) for signal in types])


@lru_cache(maxsize=1)
def signal_types() -> Mapping[str, SignalType]:
    """Return every declared signal by its quantity."""
    return {
        signal.quantity: signal
        for path, text in _sources()
        if "\nSIGNALS = " in text
        for signal in _declared_in(path, text)
    }


def modules_with(name: str) -> list[str]:
    """Return the modules in `FOLDERS` that define this name, in the order of their paths."""
    defined = re.compile(rf"^{name}\b", re.MULTILINE)
    paths = (path for path, text in _sources() if defined.search(text))
    return [".".join((_PACKAGE.name, *path.relative_to(_PACKAGE).with_suffix("").parts)) for path in paths]


def type_of(quantity: str) -> SignalType | None:
    """Return the type of a quantity; of ``loss_max`` that of ``loss``, unless it is declared itself."""
    types = signal_types()
    return types.get(quantity) or types.get(_DERIVED.sub("", quantity))


@lru_cache(maxsize=1)
def _sources() -> tuple[tuple[Path, str], ...]:
    paths = (path for folder in FOLDERS for path in sorted((_PACKAGE / folder).rglob("*.py")))
    return tuple((path, path.read_text(encoding="utf-8")) for path in paths)


def _declared_in(path: Path, text: str) -> tuple[SignalType, ...]:
    declaration = _DECLARATION.search(text)
    if declaration is None:
        raise ValueError(f"{path}: SIGNALS is neither a tuple of SignalType(...) nor signals(...)")
    (assigned,) = ast.parse(declaration[0]).body
    assert isinstance(assigned, ast.Assign)
    if isinstance(assigned.value, ast.Tuple):
        return tuple(map(_signal_in, assigned.value.elts))
    assert isinstance(assigned.value, ast.Call)
    return signals(*map(_signal_in, assigned.value.args), **_keywords_of(assigned.value))


def _signal_in(call: ast.expr) -> SignalType:
    assert isinstance(call, ast.Call)
    return SignalType(*map(ast.literal_eval, call.args), **_keywords_of(call))


def _keywords_of(call: ast.Call) -> dict[str, Any]:
    return {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords if keyword.arg}
