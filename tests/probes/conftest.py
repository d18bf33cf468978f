from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from scenarios.watching import Watched, watching


@pytest.fixture
def watched() -> Iterator[Watched]:
    with watching() as seen:
        yield seen


@pytest.fixture
def usual_recursion_limit() -> Iterator[int]:
    """Python's own, whatever a library has made of it: torch's compiler raises it."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(1000)
    yield 1000
    sys.setrecursionlimit(before)
