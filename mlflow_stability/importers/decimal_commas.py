"""Reads numbers whose decimals are set apart by a comma, as half of the world writes them: ``loss 0,5482``.

In: the lines of a text. Out: the same with points. Promised: only in texts where no number has a decimal point and
several cannot be thousands; a clock's ``12:03:04,512`` and a list's ``1,2,3`` stay what they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import chain, islice

LOOKED_AT = 500
"""How many lines tell how the numbers of a text are written."""
FEWEST = 3
"""So many numbers have to have a comma that cannot set thousands apart."""
_BEFORE = r"(?<![\w.,])(?<!\d:)"
_COMMA = re.compile(_BEFORE + r"([-+]?\d+),(\d+(?:[eE][-+]?\d+)?)(?![\w.]|,\d)")
_NO_THOUSANDS = re.compile(_BEFORE + r"[-+]?(?:\d+,(?!\d{3}\b)\d+|0\d*,\d+|\d{4,},\d+)(?:[eE][-+]?\d+)?(?![\w.]|,\d)")
_POINT = re.compile(r"(?<![\w.:/-])[-+]?\d+\.\d+(?:[eE][-+]?\d+)?(?![\w.])")


def with_points(lines: Iterable[str]) -> Iterator[str]:
    """The lines with decimal points."""
    rest = iter(lines)
    first = list(islice(rest, LOOKED_AT))
    commas = sum(len(_NO_THOUSANDS.findall(line)) for line in first if "," in line)
    if commas < FEWEST or any(_POINT.search(line) for line in first):
        return chain(first, rest)
    return (_COMMA.sub(r"\1.\2", line) if "," in line else line for line in chain(first, rest))
