"""Keeps the lines that name no step until it is clear whether they are part of the log.

In: lines without a step, with the last step and epoch before them. Out: those that count. Guarantees: a line counts if
lines like it come again as the training goes on, or if there is no other loss; a listing of source code, a banner or
a last evaluation does not; memory is bounded.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from mlflow_stability.importers.assemble import log_content
from mlflow_stability.importers.assemble.log_content import Column, LogContent
from mlflow_stability.importers.text.log_line import LogLine
from mlflow_stability.vocabulary.text import metric_meanings

MOST_SHAPES = 1000
"""How many kinds of lines are told apart."""


class LooseLines:
    """Lines without a step, by what they hold."""

    def __init__(self) -> None:
        self._shapes: dict[tuple[str, ...], LogContent] = {}
        self._values = 0

    def keep(self, row: int, read: LogLine, step: float, epoch: float) -> None:
        """Keep a line, unless there are too many kinds of them."""
        own_epoch = "epoch" if read.epoch == read.epoch else ""
        key = (own_epoch, *read.values)
        if key not in self._shapes and len(self._shapes) >= MOST_SHAPES:
            return
        self._shapes.setdefault(key, LogContent()).add_row(row, read.values, step, epoch, read.time)
        self._values += len(read.values)
        if self._values > log_content.MOST_VALUES:
            self._make_room()

    def join(self, log: LogContent) -> None:
        """Put the lines that count among those that name their step."""
        has_loss = _is_loss(name for name, column in log.columns.items() if len(column) > 1)
        for shape in self._shapes.values():
            longest = max(shape.columns.values(), key=len)
            alone = not has_loss and len(longest) >= 3 and _is_loss(shape.columns)
            if alone or _goes_along(longest):
                log.take_over(shape)

    def _make_room(self) -> None:
        """Let go of what does not count so far; of what does, keep the extremes."""
        self._shapes = {
            key: shape
            for key, shape in self._shapes.items()
            if _goes_along(max(shape.columns.values(), key=len)) or _is_loss(shape.columns)
        }
        for shape in self._shapes.values():
            shape.thin()
        self._values = sum(shape.size for shape in self._shapes.values())


def _goes_along(column: Column) -> bool:
    """Whether lines come again and again while the training goes on, and not many at one moment."""
    for clock in (column.epochs, column.steps):
        told = np.array(clock)
        moments = len(np.unique(told[np.isfinite(told)]))
        if moments >= 2 and moments * 2 >= len(column):
            return True
    return False


def _is_loss(names: Iterable[str]) -> bool:
    return any(each.quantity in ("loss", "val_loss") for each in metric_meanings(names).values())
