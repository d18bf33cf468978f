"""Freezes what lives before the first tests of a file: a look at all of Python's objects sees those that come later.

Every watched training looks for its model and optimizer among all objects. In a process that has imported MLflow, torch
and hundreds of tests these are millions, and most of the CPU time of a small training went there. Twice a file: much is
imported by the first test alone.
"""

from __future__ import annotations

import gc
from collections import Counter
from pathlib import Path

import pytest

TIMES = 2
BEGUN: Counter[Path] = Counter()
"""How many tests of each file have begun."""


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    BEGUN[item.path] += 1
    if BEGUN[item.path] <= TIMES:
        gc.collect()
        gc.freeze()
