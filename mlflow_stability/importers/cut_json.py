"""Closes a JSON document that ends in the middle, as one does whose writer was killed or whose disk was full.

In: a text that begins as one. Out: the text up to its last whole row, with every bracket closed. Promised: one pass;
nothing is made up, and half a row is no row.
"""

from __future__ import annotations

import re

_MARKS = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{},]', re.DOTALL)
_CLOSING = {"[": "]", "{": "}"}


def closed(text: str) -> str | None:
    """The document without its torn end; None where nothing whole is left, or where it has an end after all."""
    open_: list[str] = []
    end, missing = 0, ""
    for found in _MARKS.finditer(text):
        mark = found[0]
        if mark in _CLOSING:
            open_.append(mark)
        elif mark == ",":
            if open_ and open_[-1] == "[" and "[{" not in "".join(open_):  # numbers, as Keras lists them by name
                end, missing = found.start(), "".join(open_)
        elif mark in "]}":
            if not open_ or _CLOSING[open_.pop()] != mark:
                return None
            if mark == "}" and open_ and open_[-1] == "[" and "[{" not in "".join(open_):
                end, missing = found.end(), "".join(open_)
    if not open_ or not end:
        return None
    return text[:end] + "".join(_CLOSING[each] for each in reversed(missing))
