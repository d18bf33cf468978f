"""What is known of each signal: its meaning, its unit, its section of MLflow's charts, how its layers combine.

In: the files that measure signals, each with a declaration called ``SIGNALS``. Out: all of them, by name. Guarantees:
a file that measures is only read, not run, for most of them load torch, and those who read a run back never do; so a
declaration holds literals alone.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

FOLDERS = ("probes", "session/recording", "session/autopilot", "tracking/write")
"""Where signals are measured."""
Interval = Literal["every step", "every 10 steps", "by layer", "forward pass"]
Combined = Literal["mean", "norm", "min", "max"]
_PACKAGE = Path(__file__).parents[2]
_BEGINS = "\nSIGNALS = ("
_DECLARATION = re.compile(r"^SIGNALS = \((?:\n.*?^\)|.*\)$)", re.MULTILINE | re.DOTALL)
_DERIVED = re.compile(r"_(?:mean|min|max)$")


@dataclass(frozen=True, slots=True)
class SignalType:
    """One quantity, wherever it is measured."""

    quantity: str
    """Its name in the record."""
    meaning: str
    """What it is, as the manual and other tools show it."""
    section: str
    """Of MLflow's charts, and of the manual's table."""
    unit: str = "1"
    """As OpenTelemetry writes units; ``1`` for plain numbers."""
    interval: Interval = "every 10 steps"
    """Where the manual lists it."""
    exported: str = ""
    """Its name in Prometheus; empty: it is not exported."""
    exported_type: str = ""
    """Its label `type` there, where several signals share the name."""
    by_device: bool = False
    """Whether it is measured of each device: it has the label `gpu_id` there."""
    counter: bool = False
    """Whether it only grows: the value of a counter is the last one that was measured."""
    by_layer: bool = False
    """Whether it is measured of each layer, too, beside the whole model."""
    combined: Combined = "mean"
    """What the layers of a block become together."""
    summary: tuple[Combined, ...] = ()
    """What becomes a chart of all places together: ``("mean", "max")``."""
    every_place: bool = False
    """Whether each place has a chart, of however many."""
    of_steps_taken: bool = False
    """Whether a step that was not taken has none."""
    left_out: Literal["", "zero", "nan"] = ""
    """Which value says nothing and is not recorded: NaN where it does not apply, or zero."""

    @property
    def short_meaning(self) -> str:
        """What it is, without what else the manual says of it: up to the first semicolon."""
        text = self.meaning.partition(";")[0]
        return f"{text[:1].upper()}{text[1:]}"


@lru_cache(maxsize=1)
def signal_types() -> Mapping[str, SignalType]:
    """Every declared signal, by its quantity."""
    return {each.quantity: each for path, text in _sources() if _BEGINS in text for each in _declared_in(path, text)}


def modules_with(name: str) -> list[str]:
    """The modules of the folders above that define this name, in the order of their paths, to be imported."""
    defined = re.compile(rf"^{name}\b", re.MULTILINE)
    found = (path for path, text in _sources() if defined.search(text))
    return [".".join((_PACKAGE.name, *path.relative_to(_PACKAGE).with_suffix("").parts)) for path in found]


def type_of(quantity: str) -> SignalType | None:
    """What is known of a quantity; of ``loss_max`` what is known of ``loss``, unless it is declared itself."""
    known = signal_types()
    return known.get(quantity) or known.get(_DERIVED.sub("", quantity))


@lru_cache(maxsize=1)
def _sources() -> tuple[tuple[Path, str], ...]:
    paths = (path for folder in FOLDERS for path in sorted((_PACKAGE / folder).rglob("*.py")))
    return tuple((path, path.read_text(encoding="utf-8")) for path in paths)


def _declared_in(path: Path, text: str) -> Iterator[SignalType]:
    found = _DECLARATION.search(text)
    if found is None:
        raise ValueError(f"{path}: SIGNALS is not a tuple of SignalType(...)")
    (assigned,) = ast.parse(found[0]).body
    assert isinstance(assigned, ast.Assign)
    assert isinstance(assigned.value, ast.Tuple)
    for call in assigned.value.elts:
        assert isinstance(call, ast.Call)
        named = {each.arg: ast.literal_eval(each.value) for each in call.keywords if each.arg}
        yield SignalType(*map(ast.literal_eval, call.args), **named)
