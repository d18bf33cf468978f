"""Chooses the lists of rows of a JSON document that are a training, and puts their rows in order.

In: a document. Out: its longest list of objects, and beside it those of the other parts of the data, as in
``{"train": [...], "val": [...]}``, each with the word that says held-out data. Guarantees: a list beside the longest is
taken only if its name is a word for a part of the data, and if it counts what the longest counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from heapq import merge
from itertools import chain, pairwise

from mlflow_stability.importers.assemble.data_splits import part_said
from mlflow_stability.importers.assemble.step_names import is_epoch, step_rank
from mlflow_stability.importers.text.log_line import LogLine
from mlflow_stability.vocabulary.text import HELD_OUT, TRAIN

Rows = Sequence[Mapping[str, object]]
_DEEPEST = 4
_COUNTS: tuple[Callable[[LogLine, int], float], ...] = (
    lambda read, _: read.epoch,
    lambda read, _: read.step,
    lambda _, place: float(place),
)
"""What rows of several lists are ordered by: the first that each row has and that never falls within a list."""


def row_lists(document: object, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Rows]]:
    """The lists of objects in a document, each with the names that lead to it."""
    if isinstance(document, list):
        rows = [row for row in document if isinstance(row, dict)]
        if len(rows) >= 2 and len(rows) * 2 > len(document):
            yield path, rows
    elif isinstance(document, dict) and len(path) <= _DEEPEST:
        for name, each in document.items():
            yield from row_lists(each, (*path, str(name)))


def parts_among(lists: Sequence[tuple[tuple[str, ...], Rows]]) -> list[tuple[str, Rows]]:
    """The longest list, and those of other parts of the data beside it, in the order of the document.

    With each comes the word for held-out data; it is empty for what was trained on.
    """
    path, longest = max(lists, key=lambda each: len(each[1]))
    for place in range(len(path)):
        beside = [
            (part_said(other[place]), rows)
            for other, rows in lists
            if (*other[:place], "", *other[place + 1 :]) == (*path[:place], "", *path[place + 1 :])
            and (rows is longest or _count_alike(longest, rows))
        ]
        own = part_said(path[place])
        chosen = {own: longest}
        for word, rows in beside:
            if word in HELD_OUT or (word in TRAIN and own in HELD_OUT):
                chosen[word] = max(chosen.get(word, rows), rows, key=len)
        if len(chosen) > 1:
            return [
                (word if word in HELD_OUT else "", rows)
                for word, rows in beside
                if any(rows is each for each in chosen.values())
            ]
    return [("", longest)]


def _count_alike(one: Rows, other: Rows) -> bool:
    """Whether rows of two lists name the same epoch or step; where neither names any, whether they are as many."""
    ours, theirs = (
        {name for name in rows[0] if is_epoch(str(name)) or step_rank(str(name)) >= 0} for rows in (one, other)
    )
    return bool(ours & theirs) or (not ours and not theirs and len(one) == len(other))


def in_order(parts: Sequence[Sequence[LogLine]], held_out: Sequence[bool]) -> list[tuple[int, int]]:
    """The part and the place of each row, in the order in which they were measured: validation after its training."""
    places = [[(part, at) for at in range(len(rows))] for part, rows in enumerate(parts)]
    for count_of in _COUNTS if len(parts) > 1 else ():
        counts = [[count_of(read, at) for at, read in enumerate(rows)] for rows in parts]
        if all(one <= other for each in counts for one, other in pairwise([each[0], *each])):  # not-a-number is not
            trained_first = sorted(places, key=lambda each: held_out[each[0][0]])
            return list(merge(*trained_first, key=lambda place: counts[place[0]][place[1]]))
    return list(chain.from_iterable(places))
