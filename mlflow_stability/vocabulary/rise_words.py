"""How far a value rose, as people say it: in percent, and in times where a percentage would be a row of digits."""

from __future__ import annotations

MOST_IN_PERCENT = 10.0
"""From eleven times on, nobody reads percents."""


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
