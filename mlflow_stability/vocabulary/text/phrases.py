"""Numbers of things, as sentences have them.

Makes a sentence from a phrase.

In: a phrase that may begin with a name from a program. Out: the same with a capital where a sentence has one.
Guarantees: identifiers, URLs, paths, numbers and abbreviations are left as they are written.

How far a value rose: in percent, and as a factor where a percentage would have four digits or more.
"""

from __future__ import annotations

import re


def counted(count: int, noun: str) -> str:
    """``1 metric``, ``12,000 metrics``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


_ORDINARY = re.compile(r"(?P<word>[a-z]+(?:['’-][a-z]+)*)(?=$|\s|[,;:.!?)](?:\s|$))")
"""A first word of small letters alone, which ends where a word does: not ``adam_rms``, ``train/loss``, ``bf16`` or
``https://…``."""
_SPOKEN = re.compile(r"[aeiouy]")
"""What has none of these is an abbreviation: ``lr``."""


def times(count: int) -> str:
    """``once``, ``3 times``."""
    return "once" if count == 1 else f"{count:,} times"


def capitalised(phrase: str) -> str:
    """The phrase with a capital, if it begins with an ordinary word."""
    first = _ORDINARY.match(phrase)
    if first is None or not _SPOKEN.search(first["word"]):
        return phrase
    return phrase[0].upper() + phrase[1:]


def sentence(phrase: str) -> str:
    """The phrase with a capital where it has one, and with a full stop unless it ends in a mark of its own."""
    return capitalised(phrase) + ("" if phrase.endswith((".", "!", "?", "…")) else ".")


MOST_SIGMAS = 1000.0
"""A larger z is reported as above this."""


def sigmas(z: float) -> str:
    """A z as text: ``18.8σ``; ``over 1000σ``."""
    return f"{z:.1f}σ" if z <= MOST_SIGMAS else f"over {MOST_SIGMAS:g}σ"


def infinite(value: float) -> str:
    """``infinite``, or ``-infinite``."""
    return "infinite" if value > 0 else "-infinite"


def factor(value: float) -> str:
    """How many times as large, as text: ``12.3``, ``1,750``, ``1.2e+09``."""
    return f"{value:,.0f}" if 1000 <= value < 1e6 else f"{value:.3g}"


MOST_IN_PERCENT = 10.0
"""A rise above this share is given as a factor."""


def risen(share: float, level: str) -> str:
    """``up 35% from 2.1``; ``46 times 2.1``."""
    return f"up {share:.0%} from {level}" if share < MOST_IN_PERCENT else f"{1 + share:.3g} times {level}"


def above(share: float, level: str) -> str:
    """``35% above its best``; ``46 times its best``."""
    return f"{share:.0%} above {level}" if share < MOST_IN_PERCENT else f"{1 + share:.3g} times {level}"


def changed(share: float, *, positive: bool = True) -> str:
    """``-61% from start to end``; ``46 times the start at the end``, which only a positive start allows."""
    if share < MOST_IN_PERCENT or not positive:
        return f"{share:+.0%} from start to end"
    return f"{1 + share:.3g} times the start at the end"
