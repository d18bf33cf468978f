"""Words and numbers as parts of sentences."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Sequence


def number_text(value: float) -> str:
    """Return a number in at most eight characters, for people."""
    if not math.isfinite(value):
        return {"nan": "NaN", "inf": "Inf", "-inf": "-Inf"}[str(float(value))]
    if value == 0 or 1e-3 <= abs(value) < 1e5:
        return f"{value:.3g}" if abs(value) < 999.5 else f"{value:.0f}"
    return f"{value:.1e}"


def counted(count: int, noun: str, plural: str = "") -> str:
    """``1 metric``, ``12,000 metrics``."""
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"


def some_of(names: Sequence[str], most: int = 3, between: str = ", ") -> str:
    """``a, b, c and 5 more``: the first `most`."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return between.join(names[:most]) + more


_ORDINARY = re.compile(r"(?P<word>[a-z]+(?:['’-][a-z]+)*)(?=$|\s|[,;:.!?)](?:\s|$))")
"""A first word in lower case that is no identifier: not ``adam_rms``, ``train/loss``, ``bf16`` or ``https://…``."""
_VOWEL = re.compile(r"[aeiouy]")  # a word without a vowel is an abbreviation: ``lr``


def times(count: int) -> str:
    """``once``, ``3 times``."""
    return "once" if count == 1 else f"{count:,} times"


def capitalised(phrase: str) -> str:
    """Capitalise a phrase that begins with an ordinary word."""
    first = _ORDINARY.match(phrase)
    if first is None or not _VOWEL.search(first["word"]):
        return phrase
    return phrase[0].upper() + phrase[1:]


def sentence(phrase: str) -> str:
    """Capitalise a phrase, and add a full stop unless it ends with a punctuation mark."""
    return capitalised(phrase) + ("" if phrase.endswith((".", "!", "?", "…")) else ".")


MAX_SIGMAS = 1000.0  # a larger z is shown as "over" this


def sigmas(z: float) -> str:
    """``18.8σ``; ``over 1000σ``."""
    return f"{z:.1f}σ" if z <= MAX_SIGMAS else f"over {MAX_SIGMAS:g}σ"


def infinite(value: float) -> str:
    """``infinite``, or ``-infinite``."""
    return "infinite" if value > 0 else "-infinite"


def factor(value: float) -> str:
    """``12.3``, ``1,750``, ``1.2e+09``."""
    return f"{value:,.0f}" if 1000 <= value < 1e6 else f"{value:.3g}"


MAX_PERCENT_SHARE = 10.0  # a rise above this share is shown as a factor


def risen(share: float, level: str) -> str:
    """``up 35% from 2.1``; ``46 times 2.1``."""
    return f"up {share:.0%} from {level}" if share < MAX_PERCENT_SHARE else f"{1 + share:.3g} times {level}"


def above(share: float, level: str) -> str:
    """``35% above its best``; ``46 times its best``."""
    return f"{share:.0%} above {level}" if share < MAX_PERCENT_SHARE else f"{1 + share:.3g} times {level}"


def changed(share: float, *, positive: bool = True) -> str:
    """``-61% from start to end``; ``46 times the start at the end``, which only a positive start allows."""
    if share < MAX_PERCENT_SHARE or not positive:
        return f"{share:+.0%} from start to end"
    return f"{1 + share:.3g} times the start at the end"


def visible(text: str, longest: int | None = None) -> str:
    """Escape control and direction characters of foreign text, and cut it at `longest` characters.

    The result is on one line, and cannot move a cursor: ``\\x1b[31m``.
    """
    escaped = text if text.isascii() and text.isprintable() else "".join(map(_visible, text))
    return escaped if longest is None or len(escaped) <= longest else escaped[: longest - 1] + "…"


def _visible(character: str) -> str:
    if character.isprintable():
        return character
    if unicodedata.category(character) == "Zs":
        return " "  # no-break and thin spaces only change the look
    return character.encode("unicode_escape").decode("ascii")


_ENDED = {
    "running": "is still running",
    "finished": "finished",
    "crashed": "crashed",
    "exited": "exited with an error status",
    "stopped": "was stopped on purpose",
    "out_of_memory": "ran out of memory",
    "interrupted": "was interrupted",
    "killed": "was killed",
    "unknown": "ended in an unknown way",
}


def how_process_ended(outcome: str) -> str:
    """``The process was killed``; also for a run that is not over, and for a status of another tool."""
    other = f"ended as {outcome.replace('_', ' ')}"
    return f"The process {_ENDED.get(outcome, other)}"
