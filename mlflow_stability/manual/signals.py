"""The page of signals: written text, and tables made from what the files that measure declare.

In: the text beside this file. Out: the same, with a row for each signal below each line ``<!-- signals: WHICH -->``.
Guarantees: a signal that a new file declares is in its table; the text as written holds the tables, too, for those who
read it where the code lies.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from mlflow_stability.vocabulary.measured import SignalType, signal_types
from mlflow_stability.vocabulary.text import MAIN, SECTIONS

FILE = Path(__file__).with_suffix(".md")
_TABLE = re.compile(r"^<!-- signals: (?P<interval>.+) -->\n\n(?:\|.*\n)*", re.MULTILINE)
_UNITS = {"1": "", "s": "seconds", "By": "bytes"}


def page() -> str:
    """The text, with the tables of the signals as they are now."""
    return _TABLE.sub(lambda found: "".join(_table(found["interval"])), FILE.read_text(encoding="utf-8"))


def _table(interval: str) -> Iterator[str]:
    yield f"<!-- signals: {interval} -->\n\n| signal | section | unit | what it is |\n| --- | --- | --- | --- |\n"
    for section in SECTIONS:
        for each in signal_types().values():
            if (each.section, each.interval) == (section, interval):
                unit = _UNITS.get(each.unit, re.sub(r"[{}]", "", each.unit))
                yield f"| `{each.quantity}` | {_place(each)} | {unit} | {each.meaning}{_by_layer(each)} |\n"


def _place(each: SignalType) -> str:
    return "first" if each.quantity in MAIN else each.section


def _by_layer(each: SignalType) -> str:
    return "; by layer, too" if each.by_layer else ""
