"""Reads whole numbers as SQLite gives them back: NumPy's integers become eight bytes there.

A script that logs ``step=numpy.int64(5)`` into a SQLite store gets a blob for a step; MLflow hands it on as bytes.
"""

from __future__ import annotations


def whole_number(stored: int | float | bytes) -> int:
    """A step or a time of a metric's point, as the script meant it."""
    if isinstance(stored, bytes):
        return int.from_bytes(stored, "little", signed=True)
    return int(stored)
