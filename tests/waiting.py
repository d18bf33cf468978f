"""Waits for what another process or thread does, and never longer than `seconds`."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")


def wait_until(condition: Callable[[], _T], seconds: float = 60.0, values: Callable[[], str] = str) -> _T:
    """Return what the condition returns as soon as that is true; raise an AssertionError after `seconds`."""
    until = time.monotonic() + seconds
    while not (result := condition()):
        assert time.monotonic() < until, f"not within {seconds} s {values()}"
        time.sleep(0.05)
    return result
