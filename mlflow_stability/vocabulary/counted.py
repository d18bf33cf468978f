"""Numbers of things, as sentences have them."""

from __future__ import annotations


def counted(count: int, noun: str) -> str:
    """``1 metric``, ``12,000 metrics``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
