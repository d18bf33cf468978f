"""Reads the parameters of many runs as features that can be tested.

In: cards. Out: for each parameter that differs a column: numbers where it is one, else levels. Guarantees: seeds and
what only names, numbers or dates a run are no features; a parameter with nearly as many words as runs is none either,
and that is said.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.diagnosis.parameters.parameter_order import place_of
from mlflow_stability.diagnosis.parameters.setting import number_of, settings_of
from mlflow_stability.vocabulary.result import RunCard

FEWEST_NUMBERS = 3
"""A parameter with fewer different numbers is read as levels."""
MOST_LEVELS = 10
FEW_SENTENCES, FEW_NAMES = 2, 6
"""About parameters that are left out."""
NOT_SET = "not set"


@dataclass(frozen=True, slots=True, eq=False)
class Feature:
    """One parameter, for every run."""

    name: str
    values: NDArray[np.float64]
    """The numbers, NaN where it is not set; for levels their place in `levels`."""
    levels: tuple[str, ...] = ()
    """Empty for numbers."""

    @property
    def numeric(self) -> bool:
        """Whether its values are numbers that can be put in order."""
        return not self.levels

    @property
    def absent(self) -> NDArray[np.bool_]:
        """Where it is zero or not set: no warm-up, no clipping, no dropout."""
        if self.numeric:
            nothing: NDArray[np.bool_] = np.isnan(self.values) | (self.values == 0)
            return nothing
        return np.array([self.levels[int(each)].lower() in _NOTHING for each in self.values], bool)

    def label(self, value: float) -> str:
        """A value as a person would write it."""
        if self.levels:
            return self.levels[int(value)]
        return NOT_SET if math.isnan(value) else f"{value:.4g}"


_NOTHING = frozenset({NOT_SET, "0", "false"})


def features_of(cards: Sequence[RunCard]) -> tuple[list[Feature], list[str]]:
    """The features, those that people choose first, and what could not be made one, as sentences."""
    params = settings_of(cards)
    features, wordy = [], []
    for name in sorted({name for each in params for name in each}, key=lambda name: (place_of(name), name)):
        told = [each.get(name, NOT_SET) for each in params]
        if len(set(told)) < 2:
            continue
        feature = _feature(name, told)
        if feature is None:
            wordy.append((name, len(set(told))))
        else:
            features.append(feature)
    said = [
        f"{name} has {count} different text values in {len(cards)} runs, too many to compare." for name, count in wordy
    ]
    if len(wordy) > FEW_SENTENCES:
        names = ", ".join(name for name, _ in wordy[:FEW_NAMES]) + (", …" if len(wordy) > FEW_NAMES else "")
        said = [f"{len(wordy)} parameters have too many different text values to compare: {names}."]
    return features, said


def _feature(name: str, told: Sequence[str]) -> Feature | None:
    numbers = [math.nan if each == NOT_SET else number_of(each) for each in told]
    if all(each is not None for each in numbers):
        values = np.array(numbers, np.float64)
        if len(np.unique(values[~np.isnan(values)])) >= FEWEST_NUMBERS:
            return Feature(name, values)
    counted = Counter(told)
    if len(counted) > min(MOST_LEVELS, max(2, len(told) // 2)):
        return None
    levels = tuple(sorted(counted))
    return Feature(name, np.array([levels.index(each) for each in told], np.float64), levels)
