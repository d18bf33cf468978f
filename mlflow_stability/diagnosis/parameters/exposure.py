"""Steps of each run without trouble, and whether trouble began.

In: cards. Out: for each its steps until trouble began, or all its steps, and which runs are repetitions of one setting.
Guarantees: a short run without trouble counts for its own length and is not called stable beyond it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.diagnosis.parameters.setting import setting_of
from mlflow_stability.vocabulary.result import STEADY_KINDS, RunCard


@dataclass(frozen=True, slots=True, eq=False)
class Watched:
    """Steps and outcomes of runs, in one order."""

    steps: NDArray[np.float64]
    """Until trouble began; all steps of a run without trouble. All are 1 where every run without trouble is longer than
    it took any trouble to begin: then the time says nothing more than whether."""
    troubled: NDArray[np.bool_]
    settings: NDArray[np.int64]
    """Runs with the same number have equal parameters but for the seed."""

    @property
    def repeated(self) -> bool:
        """Whether any setting was tried more than once."""
        return len(np.unique(self.settings)) < len(self.settings)


def watched_of(cards: Sequence[RunCard]) -> Watched:
    """Steps and outcomes of runs of which it is known whether they were unstable."""
    troubled = np.array([bool(card.unstable) for card in cards], bool)
    steps = np.array([_steps(card) for card in cards], np.float64)
    if troubled.all() or not troubled.any() or steps[~troubled].min() >= steps[troubled].max():
        steps = np.ones(len(cards))
    numbers: dict[object, int] = {}
    settings = [numbers.setdefault(tuple(setting_of(card).items()), len(numbers)) for card in cards]
    return Watched(steps, troubled, np.array(settings, np.int64))


def _steps(card: RunCard) -> float:
    begun = [each.start for each in card.troubles if each.kind not in STEADY_KINDS] if card.unstable else []
    last = card.last_step if card.last_step is not None else 0
    ends = min([*begun, *([] if card.divergence is None else [card.divergence])], default=last)
    return float(max(1, ends - (card.first_step or 0)))
