"""Keeps the histories that a log prints as a whole: ``history: {'loss': [2.3, 1.9], 'val_loss': [2.5, 2.4]}``.

In: the lines of a log. Out: the longest history among them, as columns. Guarantees: it counts only where the log has no
curve of a loss otherwise, for most who print their history at the end have printed each epoch before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from mlflow_stability.importers.assemble.log_content import LogContent
from mlflow_stability.importers.files.json_rows import number_in, parsed
from mlflow_stability.vocabulary.text import metric_meanings


class PrintedLists:
    """The lines with names and lists of numbers."""

    def __init__(self) -> None:
        self._longest: dict[str, list[object]] = {}

    def take(self, line: str) -> None:
        """A line that holds a dictionary without numbers of its own."""
        found = parsed(line[line.find("{") : line.rfind("}") + 1])
        lists = dict(_lists(found)) if isinstance(found, dict) else {}
        if _size(lists) > _size(self._longest):
            self._longest = lists

    def join(self, log: LogContent) -> None:
        """Put the longest history into a log that has none."""
        if not self._longest or has_loss_curve(log) or not _has_loss(self._longest):
            return
        for name, values in self._longest.items():
            numbers = np.array([number_in(each) for each in values], np.float64)
            log.add_column(name, np.arange(len(values), dtype=np.int64), numbers)


def _lists(found: Mapping[str, object]) -> Iterable[tuple[str, list[object]]]:
    for name, values in found.items():
        if isinstance(values, list) and len(values) > 1 and all(type(each) in (int, float) for each in values):
            yield name, values


def _size(lists: Mapping[str, list[object]]) -> int:
    return sum(map(len, lists.values()))


def has_loss_curve(log: LogContent) -> bool:
    """Whether a log has a loss with two values or more."""
    return _has_loss(name for name, column in log.columns.items() if len(column) > 1)


def _has_loss(names: Iterable[str]) -> bool:
    return any(each.quantity in ("loss", "val_loss") for each in metric_meanings(names).values())
