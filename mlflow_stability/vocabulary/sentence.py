"""Makes a sentence from a phrase.

In: a phrase that may begin with a name from a program. Out: the same with a capital where a sentence has one.
Guarantees: identifiers, URLs, paths, numbers and abbreviations are left as they are written.
"""

from __future__ import annotations

import re

_ORDINARY = re.compile(r"(?P<word>[a-z]+(?:['’-][a-z]+)*)(?=$|\s|[,;:.!?)](?:\s|$))")
"""A first word of small letters alone, which ends where a word does: not ``adam_rms``, ``train/loss``, ``bf16`` or
``https://…``."""
_SPOKEN = re.compile(r"[aeiouy]")
"""What has none of these is an abbreviation: ``lr``."""


def capitalised(phrase: str) -> str:
    """The phrase with a capital, if it begins with an ordinary word."""
    first = _ORDINARY.match(phrase)
    if first is None or not _SPOKEN.search(first["word"]):
        return phrase
    return phrase[0].upper() + phrase[1:]


def sentence(phrase: str) -> str:
    """The phrase with a capital where it has one, and with a full stop unless it ends in a mark of its own."""
    return capitalised(phrase) + ("" if phrase.endswith((".", "!", "?", "…")) else ".")
