"""Reads the header of a chart that was exported from W&B: ``"Step","run - loss","run - loss__MIN","run - loss__MAX"``.

In: the names of a table's columns. Out: the runs in it, each with its columns and what its metrics are called.
Guarantees: only a column whose lowest and highest values stand beside it is taken for one of a run; those two are none.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_NAME = re.compile(r"(?P<run>.+) - (?P<metric>.+?)(?P<again>| \(\d+\))", re.DOTALL)
"""What a run calls its metric; a second run of the same name has a number behind it."""


@dataclass(frozen=True, slots=True)
class Chart:
    """What a chart holds."""

    runs: dict[str, dict[str, str]]
    """For each run the names of its columns, each with that of its metric."""
    bounds: frozenset[str]
    """The columns that hold the lowest and the highest values of another."""


def chart_of(names: Sequence[str]) -> Chart | None:
    """The chart that a table with these columns is; None where it is none."""
    known = set(names)
    runs: dict[str, dict[str, str]] = {}
    bounds: set[str] = set()
    for name in names:
        found = _NAME.fullmatch(name)
        if found is not None:
            run, metric, again = found.groups()
            beside = {f"{run} - {metric}{bound}{again}" for bound in ("__MIN", "__MAX")}
            if beside <= known:
                runs.setdefault(run + again, {})[name] = metric
                bounds |= beside
    return Chart(runs, frozenset(bounds)) if runs else None
