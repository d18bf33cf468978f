from __future__ import annotations

import pytest

from mlflow_stability.vocabulary.counted import counted


@pytest.mark.parametrize(
    ("count", "said"), [(0, "0 metrics"), (1, "1 metric"), (2, "2 metrics"), (12_000, "12,000 metrics")]
)
def test_one_thing_is_no_plural(count: int, said: str) -> None:
    assert counted(count, "metric") == said
