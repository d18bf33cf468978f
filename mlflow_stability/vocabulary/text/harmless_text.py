"""Makes text harmless that somebody else wrote: names, messages, lines of a log.

In: any text. Out: the same on one line with everything in it visible, so that it cannot move a cursor, turn the
direction of writing or end a line.
"""

from __future__ import annotations

import unicodedata


def visible(text: str, longest: int | None = None) -> str:
    """The text on one line, with control and direction characters written out: ``\\x1b[31m``.

    Longer than `longest`, it is cut there, with an ellipsis.
    """
    shown = text if text.isascii() and text.isprintable() else "".join(map(_visible, text))
    return shown if longest is None or len(shown) <= longest else shown[: longest - 1] + "…"


def _visible(character: str) -> str:
    if character.isprintable():
        return character
    if unicodedata.category(character) == "Zs":
        return " "  # no-break and thin spaces only change the look
    return character.encode("unicode_escape").decode("ascii")
