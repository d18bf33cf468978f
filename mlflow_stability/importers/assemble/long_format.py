"""Recognises logs in which every row holds one value, and says which: ``{"metric": "loss", "step": 3, "value": 0.5}``.

In: the names in a row, or of the columns of a table. Out: which of them holds the metric's name, and which its value.
"""

from __future__ import annotations

from functools import lru_cache

from mlflow_stability.importers.assemble.step_names import is_epoch, is_time, step_rank

_NAMES = ("metric", "metric_name", "tag", "key", "name")
_VALUES = ("value", "metric_value", "val")


@lru_cache(maxsize=4096)
def name_and_value(texts: tuple[str, ...], numbers: tuple[str, ...]) -> tuple[str, str] | None:
    """The one that holds the name and the one that holds the value; None where rows hold other numbers too."""
    name = next((each for known in _NAMES for each in texts if _plain(each) == known), None)
    value = next((each for known in _VALUES for each in numbers if _plain(each) == known), None)
    if name is None or value is None:
        return None
    others = (each for each in numbers if each != value)
    return (name, value) if all(step_rank(each) >= 0 or is_epoch(each) or is_time(each) for each in others) else None


def _plain(name: str) -> str:
    return name.strip().lower().replace(" ", "_")
