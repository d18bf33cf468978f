"""Parameters of many runs as columns that can be tested, the outcomes of these runs, and splits of both.

A parameter that differs is a column of numbers or of levels. Text parameters with almost as many values as runs are
left out, and reported.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.diagnosis.parameters import number_of, place_of, setting_of, settings_of
from mlflow_stability.vocabulary.result import STEADY_KINDS, RunCard
from mlflow_stability.vocabulary.text.phrases import some_of

MIN_NUMBERS = 3  # a parameter with fewer different numbers is read as levels
MOST_LEVELS = 10
MAX_SENTENCES, MAX_NAMES = 2, 6  # about parameters that are left out
NOT_SET = "not set"
MIN_SIDE = 3  # runs on either side of a split
MOST_LIMITS = 200  # limits of a number that are tried


@dataclass(frozen=True, slots=True, eq=False)
class Feature:
    name: str
    values: NDArray[np.float64]  # the numbers, NaN where it is not set; for levels their place in `levels`
    levels: tuple[str, ...] = ()  # empty for numbers

    @property
    def numeric(self) -> bool:
        """Whether its values are numbers that can be put in order."""
        return not self.levels

    @property
    def absent(self) -> NDArray[np.bool_]:
        """Where it is zero or not set: no warm-up, no clipping, no dropout."""
        if self.numeric:
            return np.asarray(np.isnan(self.values) | (self.values == 0))
        return np.array([self.levels[int(place)].lower() in (NOT_SET, "0", "false") for place in self.values], bool)


def features_of(cards: Sequence[RunCard]) -> tuple[list[Feature], list[str]]:
    """Return the features, those that people choose first, and sentences about parameters that are left out."""
    settings = settings_of(cards)
    features, left_out = [], []
    for name in sorted({name for setting in settings for name in setting}, key=lambda name: (place_of(name), name)):
        texts = [setting.get(name, NOT_SET) for setting in settings]
        if len(set(texts)) < 2:
            continue
        feature = _feature(name, texts)
        if feature is None:
            left_out.append((name, len(set(texts))))
        else:
            features.append(feature)
    if len(left_out) > MAX_SENTENCES:
        names = some_of([name for name, _ in left_out], MAX_NAMES)
        return features, [f"{len(left_out)} parameters have too many different text values to compare: {names}."]
    return features, [
        f"{name} has {count} different text values in {len(cards)} runs, too many to compare."
        for name, count in left_out
    ]


def _feature(name: str, texts: Sequence[str]) -> Feature | None:
    numbers = [math.nan if text == NOT_SET else number_of(text) for text in texts]
    if all(number is not None for number in numbers):
        values = np.array(numbers, np.float64)
        if len(np.unique(values[~np.isnan(values)])) >= MIN_NUMBERS:
            return Feature(name, values)
    levels = tuple(sorted(Counter(texts)))
    if len(levels) > min(MOST_LEVELS, max(2, len(texts) // 2)):
        return None
    return Feature(name, np.array([levels.index(text) for text in texts], np.float64), levels)


@dataclass(frozen=True, slots=True, eq=False)
class Exposure:
    """Steps and outcomes of runs, in one order; a short run without trouble counts for its own length only."""

    steps: NDArray[np.float64]
    """Until trouble began; all steps of a run without trouble. All are 1 where every run without trouble is longer than
    it took any trouble to begin: then time has no information beyond the outcome."""
    troubled: NDArray[np.bool_]
    settings: NDArray[np.int64]  # runs with the same number have equal parameters except for the seed

    @property
    def repeated(self) -> bool:
        return len(np.unique(self.settings)) < len(self.settings)


def exposure_of(cards: Sequence[RunCard]) -> Exposure:
    troubled = np.array([bool(card.unstable) for card in cards], bool)
    steps = np.array([_steps_observed(card) for card in cards], np.float64)
    if troubled.all() or not troubled.any() or steps[~troubled].min() >= steps[troubled].max():
        steps = np.ones(len(cards))
    numbers: dict[object, int] = {}
    settings = [numbers.setdefault(tuple(setting_of(card).items()), len(numbers)) for card in cards]
    return Exposure(steps, troubled, np.array(settings, np.int64))


def _steps_observed(card: RunCard) -> float:
    onsets = [mark.start for mark in card.troubles if mark.kind not in STEADY_KINDS] if card.unstable else []
    onsets += [] if card.divergence is None else [card.divergence]
    end = min(onsets, default=0 if card.last_step is None else card.last_step)
    return float(max(1, end - (card.first_step or 0)))


@dataclass(frozen=True, slots=True, eq=False)
class Split:
    worse: NDArray[np.bool_]  # the runs on the side that is unstable more often
    words: str  # that side: ``lr > 0.003``
    other_words: str
    limit: float | None = None  # for a number that is split by its size


def best_split(feature: Feature, outcome: NDArray[np.bool_], among: NDArray[np.bool_] | None = None) -> Split | None:
    """Return the split with the purest sides, among all runs or some; None if there is no split."""
    among = np.ones(len(outcome), bool) if among is None else among
    splits = [
        split
        for split in _splits(feature)
        if min(int((split.worse & among).sum()), int((~split.worse & among).sum())) >= MIN_SIDE
    ]
    if not splits:
        return None
    split = min(splits, key=lambda split: _impurity(split.worse, outcome, among))
    if outcome[among & split.worse].mean() >= outcome[among & ~split.worse].mean():
        return split
    return Split(~split.worse, split.other_words, split.words, split.limit)


def _splits(feature: Feature) -> list[Split]:
    name = feature.name
    if not feature.numeric:
        only_two = len(feature.levels) == 2
        return [
            Split(
                feature.values == place,
                f"{name} {level}",
                f"{name} {feature.levels[1 - place]}" if only_two else f"{name} other than {level}",
            )
            for place, level in enumerate(feature.levels)
        ]
    different = np.unique(feature.values[~np.isnan(feature.values)])
    count = max(0, len(different) - 1)
    places = np.linspace(0, count - 1, min(count, MOST_LIMITS)).round().astype(np.int64)
    low, high = different[places], different[places + 1]
    # The geometric middle between positive neighbours: learning rates differ by factors.
    limits = (np.sqrt(low) * np.sqrt(high) if (different > 0).all() else low / 2 + high / 2).tolist()
    sides = [Split(feature.values > at, f"{name} > {at:.3g}", f"{name} ≤ {at:.3g}", at) for at in limits]
    unset, zero = bool(np.isnan(feature.values).any()), bool((feature.values == 0).any())
    absent_words = "0 or not set" if zero and unset else "not set" if unset else "0"
    return [Split(feature.absent, f"{name} {absent_words}", f"{name} not 0" if zero else f"{name} set"), *sides]


def _impurity(side: NDArray[np.bool_], outcome: NDArray[np.bool_], among: NDArray[np.bool_]) -> float:
    parts = [outcome[among & side], outcome[among & ~side]]
    return float(sum(len(part) * part.mean() * (1 - part.mean()) for part in parts))
