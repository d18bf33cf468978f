"""How often each finding was made of trainings in which nothing is wrong, as it was measured.

In: `false_alarms.json`, which `python -m tests.benchmarks false_alarms` writes. Out: one sentence for each finding.
Guarantees: a finding that needs more than a loss curve is given no figure from loss curves.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("false_alarms.json")
OF_LOSS_CURVES = frozenset({"loss", "val_loss", "score", "val_score"})
"""Quantities that a log of a loss has; what looks at others was not tried on such logs."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One set of runs in which nothing is wrong."""

    what: str
    runs: int
    kinds: Collection[str]
    """The kinds that were looked for."""
    flagged: Mapping[str, int]
    """In how many of them each finding was made as a WARNING or worse; none where one of `kinds` is missing."""
    loss_alone: bool
    """Whether nothing but loss curves was there to be judged."""

    def as_json(self) -> dict[str, Any]:
        """What the file keeps of it."""
        return asdict(self)


@cache
def measured() -> tuple[Measured, ...]:
    """What the file holds."""
    return tuple(Measured(**each) for each in json.loads(FILE.read_text(encoding="utf-8")))


def false_alarms_of(kind: str, quantities: Collection[str]) -> str:
    """`2 of 128 healthy trainings …; none of 1,600 drawn curves …`, for a finding that judges these quantities.

    Empty for a kind that is newer than the measurement.
    """
    fit = [
        each for each in measured() if kind in each.kinds and (not each.loss_alone or OF_LOSS_CURVES & set(quantities))
    ]
    return "; ".join(f"{each.flagged.get(kind, 0) or 'none'} of {each.runs:,} {each.what}" for each in fit)
