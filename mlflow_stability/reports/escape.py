"""Makes names and messages harmless that somebody else wrote.

In: text from a log, a run's name, an exception. Out: the same text with everything in it visible, so that it cannot
move a cursor, turn the direction of writing, end a line, or mean something to Markdown or a spreadsheet. HTML needs
nothing more of its own: the page escapes whatever it shows.
"""

from __future__ import annotations

import re

from mlflow_stability.vocabulary.text import visible

_FORMULA = ("=", "+", "-", "@", "＝", "＋", "－", "＠")
_MARKDOWN = re.compile(r"[\\`*\[\]<|~&$]|(?<![^\W_])_|_(?![^\W_])|^>")
_OPENS_A_BLOCK = re.compile(r"^(?:(?:#{1,6}|[+-]|\d+[.)])(?:\s|$)|[-=]{2,})")
_LINKS_BY_ITSELF = re.compile(r"(?i)://|www\.|@")


plain = visible
"""The text on one line, with everything in it visible."""


def plain_lines(text: str) -> str:
    """The text with everything in it visible, but for the ends of its lines."""
    return "\n".join(map(plain, text.split("\n")))


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


def _entity(character: str) -> str:
    return f"&#{ord(character)};"
