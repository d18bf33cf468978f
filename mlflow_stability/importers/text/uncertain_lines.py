"""Keep lines until the end of a log decides whether they count: lines without a step, and whole printed histories."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from mlflow_stability.importers import log_content
from mlflow_stability.importers.json_rows import number_in, parse_value
from mlflow_stability.importers.log_content import Column, LogContent, LogLine
from mlflow_stability.vocabulary.text.metric_names import metric_meanings

MAX_SHAPES = 1000  # kinds of lines that are distinguished
MANY_TIMES = 5
"""How much more often lines with a step must log a metric for those without one to be summaries."""


class LooseLines:
    """Lines without a step, by the names in them.

    A line counts if lines like it are repeated as the training goes on, or if there is no other loss; a listing of
    source code, a banner or a last evaluation does not.
    """

    def __init__(self) -> None:
        self._shapes: dict[tuple[str, ...], LogContent] = {}
        self._size = 0

    def keep(self, row: int, read: LogLine, step: float, epoch: float) -> None:
        """Keep a line with the last step and epoch before it, unless there are too many kinds of lines."""
        own_epoch = "epoch" if read.epoch == read.epoch else ""
        shape = (own_epoch, *read.values)
        if shape not in self._shapes and len(self._shapes) >= MAX_SHAPES:
            return
        self._shapes.setdefault(shape, LogContent()).add_row(row, read.values, step, epoch, read.time)
        self._size += len(read.values)
        if self._size > log_content.MAX_VALUES:
            self._make_room()

    def join(self, log: LogContent) -> None:
        """Add the lines that count to those that name their step."""
        has_loss = has_loss_curve(log)
        with_step = {name: len(column) for name, column in log.columns.items()}
        for shape, lines in self._shapes.items():
            longest = max(lines.columns.values(), key=len)
            only_loss = not has_loss and len(longest) >= 3 and _any_loss(lines.columns)
            if only_loss or _recurs(longest):
                for name, column in list(lines.columns.items()):
                    # What lines that name their step log much more often is a summary; not so what is not finite.
                    if with_step.get(name, 0) >= MANY_TIMES * len(column) and np.isfinite(column.values).all():
                        del lines.columns[name]
                    elif shape[0] and column.epochs[0] > 1 and column.epochs.count(column.epochs[0]) == len(column):
                        log.doubts[name] = (
                            f"all {len(column):,} values are of epoch {column.epochs[0]:g}, "
                            "as the results of several trainings are"
                        )
                log.merge(lines)

    def _make_room(self) -> None:
        """Drop lines that do not count yet; of the others keep the extremes."""
        self._shapes = {
            shape: lines
            for shape, lines in self._shapes.items()
            if _recurs(max(lines.columns.values(), key=len)) or _any_loss(lines.columns)
        }
        for lines in self._shapes.values():
            lines.thin()
        self._size = sum(lines.size for lines in self._shapes.values())


def _recurs(column: Column) -> bool:
    """Whether lines are repeated as the training goes on, and not many at one moment."""
    for counter in (column.epochs, column.steps):
        counts = np.array(counter)
        moments = len(np.unique(counts[np.isfinite(counts)]))
        if moments >= 2 and moments * 2 >= len(column):
            return True
    return False


class PrintedLists:
    """Histories that a log prints as a whole: `history: {'loss': [2.3, 1.9], 'val_loss': [2.5, 2.4]}`.

    The longest counts where the log has no curve of a loss otherwise: most who print their history at the end have
    printed each epoch before.
    """

    def __init__(self) -> None:
        self._longest: dict[str, list[object]] = {}

    def take(self, line: str) -> None:
        """Read a line that holds a dictionary without numbers of its own."""
        value = parse_value(line[line.find("{") : line.rfind("}") + 1])
        lists = {
            name: items
            for name, items in (value.items() if isinstance(value, dict) else ())
            if isinstance(items, list) and len(items) > 1 and all(type(item) in (int, float) for item in items)
        }
        if sum(map(len, lists.values())) > sum(map(len, self._longest.values())):
            self._longest = lists

    def join(self, log: LogContent) -> None:
        """Add the longest history to a log without a loss."""
        if not self._longest or has_loss_curve(log) or not _any_loss(self._longest):
            return
        for name, values in self._longest.items():
            numbers = np.array([number_in(value) for value in values], np.float64)
            log.add_column(name, np.arange(len(values), dtype=np.int64), numbers)
        log.rows_are_lines = False


def has_loss_curve(log: LogContent) -> bool:
    """Whether a log has a loss with two values or more."""
    return _any_loss(name for name, column in log.columns.items() if len(column) > 1)


def _any_loss(names: Iterable[str]) -> bool:
    return any(meaning.quantity in ("loss", "val_loss") for meaning in metric_meanings(names).values())
