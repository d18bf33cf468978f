"""Leaves looks at all of Python's objects with those of one file of tests.

What lives before the first test of a file is frozen: with all that pytest, MLflow and torch keep, each training and
each `gc.collect()` would look at half a million objects. Nothing is unfrozen: what a file leaves joins the rest.
At the end, too: pytest then collects ten times.
"""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Generator

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Nothing that is imported while tests are collected goes again: to look for what may is a sixth of that time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_sessionfinish() -> None:
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="module")
def only_objects_of_this_file_are_looked_at() -> None:
    if "torch" in sys.modules:
        importlib.import_module("torch._dynamo")  # which the first optimizer would import
    gc.collect()
    gc.freeze()
