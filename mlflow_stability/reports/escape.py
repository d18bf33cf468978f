"""Escape names and messages of other people for terminals, Markdown and spreadsheets.

Escaped text stays on one line and cannot move a cursor, turn the direction of writing, or become markup or a formula.
HTML needs nothing of its own: the templates escape whatever they show.
"""

from __future__ import annotations

import re

from mlflow_stability.vocabulary.text.phrases import visible

_FORMULA = ("=", "+", "-", "@", "＝", "＋", "－", "＠")
_MARKDOWN = re.compile(r"[\\`*\[\]<|~&$]|(?<![^\W_])_|_(?![^\W_])|^>")
_OPENS_A_BLOCK = re.compile(r"^(?:(?:#{1,6}|[+-]|\d+[.)])(?:\s|$)|[-=]{2,})")
_LINKS_BY_ITSELF = re.compile(r"(?i)://|www\.|@")

plain = visible  # the text on one line, with everything in it visible


def plain_lines(text: str) -> str:
    """Return the text with everything in it visible except the ends of its lines."""
    return "\n".join(map(plain, text.split("\n")))


def csv_cell(text: str) -> str:
    """Return the text as a cell that no spreadsheet reads as a formula."""
    shown = plain(text)
    return f"'{shown}" if shown.lstrip().startswith(_FORMULA) else shown


def markdown(text: str) -> str:
    """Return Markdown that shows the text: no emphasis, code, link, table cell, heading or HTML."""
    shown = _MARKDOWN.sub(r"\\\g<0>", plain(text).strip())
    shown = _LINKS_BY_ITSELF.sub(lambda match: f"{match[0][:-1]}{_entity(match[0][-1])}", shown)
    shown = f"{_entity(shown[0])}{shown[1:]}" if _OPENS_A_BLOCK.match(shown) else shown
    return f"{shown[:-1]}{_entity('#')}" if shown.endswith("#") else shown  # a trailing # would close a heading


def _entity(character: str) -> str:
    return f"&#{ord(character)};"
