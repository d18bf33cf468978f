"""Writes numbers the usual way that some programs write in their own.

In: a line of a log. Out: the same line with ``nan``, ``inf`` and plain numbers in it. Guarantees: what C libraries make
of not-a-number (``-nan(ind)``, ``1.#QNAN``, ``-1.#IND``) is not-a-number and never the 1 that it begins with;
``tensor(0.5, device='cuda:0')`` is 0.5, and the Chinese for "the third epoch" is ``epoch 3``.

Reads numbers whose decimals are set apart by a comma, as half of the world writes them: ``loss 0,5482``.

In: the lines of a text. Out: the same with points. Guarantees: only in texts where no number has a decimal point and
several cannot be thousands; a clock's ``12:03:04,512`` and a list's ``1,2,3`` stay what they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice

_TENSOR = re.compile(r"\btensor\(([^,()\[\]]+)[^()]*\)")
_NAN = re.compile(r"(?<![\w.])[-+]?nan\((?:[qs]?nan|ind|0x[0-9a-f]+|\d*)\)", re.IGNORECASE)
_ORDINAL = re.compile(r"第\s*(\d+)\s*(?:/\s*\d+\s*)?个?(轮|步|次迭代|epoch\b|iter\b|step\b)")
_COUNTED = {"轮": "epoch", "步": "step", "次迭代": "iteration", "epoch": "epoch", "iter": "iter", "step": "step"}
_SHARP = re.compile(r"(?<![\w.])([-+]?)1\.#(QNAN|SNAN|IND|INF|R|J)\d*\b")


def usual(line: str) -> str:
    """The line with its numbers as everybody writes them."""
    if "(" in line:
        if "tensor(" in line:
            line = _TENSOR.sub(r"\1", line)
        line = _NAN.sub("nan", line)
    if "第" in line:
        line = _ORDINAL.sub(lambda found: f"{_COUNTED[found[2]]} {found[1]} ", line)
    return _SHARP.sub(_finite_or_not, line) if "1.#" in line else line


def _finite_or_not(found: re.Match[str]) -> str:
    """Infinite or not a number; cut to two decimals ``1.#INF`` is ``1.#J``, and ``-1.#IND`` too."""
    sign, what = found.groups()
    return f"{sign}inf" if what == "INF" or (what == "J" and sign != "-") else "nan"


LOOKED_AT = 500
"""How many lines tell how the numbers of a text are written."""
FEWEST = 3
"""So many numbers have to have a comma that cannot set thousands apart."""
_BEFORE = r"(?<![\w.,])(?<!\d:)"
_COMMA = re.compile(_BEFORE + r"([-+]?\d+),(\d+(?:[eE][-+]?\d+)?)(?![\w.]|,\d)")
_NO_THOUSANDS = re.compile(_BEFORE + r"[-+]?(?:\d+,(?!\d{3}\b)\d+|0\d*,\d+|\d{4,},\d+)(?:[eE][-+]?\d+)?(?![\w.]|,\d)")
_POINT = re.compile(r"(?<![\w.:/-])[-+]?\d+\.\d+(?:[eE][-+]?\d+)?(?![\w.])")


def has_decimal_commas(first: Sequence[str]) -> bool:
    """Whether the first lines of a text write numbers with commas for points."""
    commas = sum(len(_NO_THOUSANDS.findall(line)) for line in first if "," in line)
    return commas >= FEWEST and not any(_POINT.search(line) for line in first)


def with_points(lines: Iterable[str]) -> Iterator[str]:
    """The lines with decimal points."""
    rest = iter(lines)
    first = list(islice(rest, LOOKED_AT))
    if not has_decimal_commas(first):
        return chain(first, rest)
    return (_COMMA.sub(r"\1.\2", line) if "," in line else line for line in chain(first, rest))
