from __future__ import annotations

from pathlib import Path

import pytest
from architecture.repository import nodes_of, tree_of


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Drop the trees of the package after the last test of this folder: they take 160 MB."""
    if nextitem is None or Path(__file__).parent not in nextitem.path.parents:
        nodes_of.cache_clear()
        tree_of.cache_clear()
