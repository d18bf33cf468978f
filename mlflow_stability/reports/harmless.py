"""Makes names and messages harmless that somebody else wrote.

In: text from a log, a run's name, an exception. Out: the same text with everything in it visible, so that it cannot
move a cursor, turn the direction of writing, end a line, or mean something to Markdown or a spreadsheet. HTML needs
nothing more of its own: the page escapes whatever it shows.
"""

from __future__ import annotations

import re
import unicodedata

_FORMULA = ("=", "+", "-", "@", "＝", "＋", "－", "＠")
_MARKDOWN = re.compile(r"[\\`*\[\]<|~&$]|(?<![^\W_])_|_(?![^\W_])|^>")
_OPENS_A_BLOCK = re.compile(r"^(?:(?:#{1,6}|[+-]|\d+[.)])(?:\s|$)|[-=]{2,})")
_LINKS_BY_ITSELF = re.compile(r"(?i)://|www\.|@")


def plain(text: str, longest: int | None = None) -> str:
    """The text on one line, with control and direction characters written out: ``\\x1b[31m``.

    Longer than `longest`, it is cut there, with an ellipsis.
    """
    shown = text if text.isascii() and text.isprintable() else "".join(map(_visible, text))
    return shown if longest is None or len(shown) <= longest else shown[: longest - 1] + "…"


def csv_cell(text: str) -> str:
    """The text as a cell that no spreadsheet takes for a formula."""
    shown = plain(text)
    return f"'{shown}" if shown.lstrip().startswith(_FORMULA) else shown


def markdown(text: str) -> str:
    """The text as Markdown that shows it: no emphasis, code, link, table cell, heading or HTML comes of it."""
    shown = _MARKDOWN.sub(r"\\\g<0>", plain(text).strip())
    shown = _LINKS_BY_ITSELF.sub(lambda found: f"{found[0][:-1]}{_entity(found[0][-1])}", shown)
    shown = f"{_entity(shown[0])}{shown[1:]}" if _OPENS_A_BLOCK.match(shown) else shown
    return f"{shown[:-1]}{_entity('#')}" if shown.endswith("#") else shown  # which would close a heading


def _visible(character: str) -> str:
    if character.isprintable():
        return character
    if unicodedata.category(character) == "Zs":
        return " "  # no-break and thin spaces are for the eye alone
    return character.encode("unicode_escape").decode("ascii")


def _entity(character: str) -> str:
    return f"&#{ord(character)};"
