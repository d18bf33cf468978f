"""Decide whether the level of a recording's losses measures progress, and whether it is chance level.

It does not where the recording says so, where trainings alternate as the halves of a GAN do, and where the sign of the
loss keeps changing. Detectors and the rules of whole curves share these definitions. Chance level is the logarithm of
the number of classes; of numbers that no setting names only a few count, for the logarithm of some number is near to
any loss.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.vocabulary.loss_level import LOSS_LEVEL, LossLevel, NoLevel, level_from_code
from mlflow_stability.vocabulary.text.foreign_names import word_set

RISE = 10.0
"""Minimum ratio of a loss, or of a gradient norm, to its baseline in adversarial training: a GAN whose learning rate is
far too high has losses at 10 to 100 times their baseline, and nothing else shows it."""
REPLACING = 1.0  # update, as a share of the weight norm, that leaves nothing of the initial weights
RISE_REPLACED = 1.5  # minimum ratio of a loss and its gradient norm to their first values after such an update
GRADIENT_RISE = 1000.0
"""Minimum ratio of a gradient norm where the loss has no level for another reason: when a DQN copies its target, errors
and gradients rise for some steps, usually up to fifteenfold, and a hundredfold at a first copy that comes late."""
LOSS_RISE = 1000.0  # ratio to its size in the first steps from which a loss without a level has diverged
LEAST_SIZE = 10.0  # minimum size of such a loss: sparse rewards make one of 1e-6 grow a thousandfold
MIN_RETURNS = 4  # minimum number of times that a loss comes again after another's where trainings alternate
STRETCH_LOSSES = 12  # number of losses of one sign in a row that make a stretch
MIN_STRETCHES = 6
"""Minimum number of stretches, of alternating signs, of a signed loss. A density that crosses zero has two, and up to
four with noise."""
WINDOW = 64  # number of losses in a window
MIXED_WINDOWS = 8  # number of windows in a row that hold both signs where a loss is noise around zero
MIXED_SHARE = 0.2  # minimum share of the rarer sign in each of them
MAX_CHANGE = 0.05
"""Maximum change of the share of negative losses from the first half of them to the second: a density that crosses
zero changes it."""


@dataclass(slots=True)
class AlternatingLosses:
    """Counts how often the loss of one training comes again after that of another."""

    last: str | None = None
    places: set[str] = field(default_factory=set)
    returns: int = 0

    @property
    def alternate(self) -> bool:
        return self.returns >= MIN_RETURNS

    def take(self, place: str) -> None:
        if place != self.last:
            self.returns += place in self.places
            self.places.add(place)
            self.last = place


def take_turns(steps_of_places: Sequence[Sequence[int] | NDArray[np.int64]]) -> bool:
    """Return whether trainings alternate, from the steps of each loss; losses of one step come in their order."""
    if len(steps_of_places) < 2:
        return False
    lengths = [len(steps) for steps in steps_of_places]
    steps = np.concatenate([np.asarray(steps, np.int64) for steps in steps_of_places])
    places = np.repeat(np.arange(len(lengths)), lengths)[np.argsort(steps, kind="stable")]
    changes = int(np.count_nonzero(places[1:] != places[:-1]))
    return bool(changes - np.count_nonzero(lengths) + 1 >= MIN_RETURNS)  # the first change to a place is no return


@dataclass(slots=True)
class Signs:
    """The signs of a loss: whether long stretches of both alternate, or both are mixed for long."""

    negative: bool | None = None  # the sign of the current run of losses; None before the first one
    run: int = 0  # number of losses in it
    stretches: int = 0
    last_stretch: bool | None = None  # the sign of the last stretch
    count: int = 0  # number of losses in the current window
    below: int = 0  # number of negative ones among them
    shares: list[float] = field(default_factory=list)  # share of negative losses in each of the last mixed windows
    keep_changing: bool = False  # whether the loss is signed

    def take(self, value: float) -> None:
        negative = value < 0
        self.count += 1
        self.below += negative
        if self.count == WINDOW:
            self._end_window()
        if negative is not self.negative:
            self.negative, self.run = negative, 1
            return
        self.run += 1
        if self.run == STRETCH_LOSSES and negative is not self.last_stretch:
            self.stretches += 1
            self.last_stretch = negative
            self.keep_changing = self.keep_changing or self.stretches >= MIN_STRETCHES

    def _end_window(self) -> None:
        share = self.below / self.count
        self.count = self.below = 0
        if not MIXED_SHARE <= share <= 1 - MIXED_SHARE:
            self.shares.clear()
            return
        self.shares = [*self.shares[1 - MIXED_WINDOWS :], share]
        half = MIXED_WINDOWS // 2
        if len(self.shares) == MIXED_WINDOWS:
            change = abs(sum(self.shares[:half]) - sum(self.shares[half:])) / half
            self.keep_changing = self.keep_changing or change <= MAX_CHANGE


def keeps_changing_sign(values: Iterable[float]) -> bool:
    """Return whether the loss of a whole curve is signed."""
    signs = Signs()
    for value in values:
        signs.take(value)
    return signs.keep_changing


class LossLevels:
    """Follows the losses of one recording, to see whether they have a level."""

    __slots__ = ("_given", "_recorded", "_signs", "_turns", "has_level", "reason")

    def __init__(self, given: LossLevel | None = None) -> None:
        self._given = given  # a level that is known beforehand
        self._recorded: LossLevel | None = None
        self._turns = AlternatingLosses()
        self._signs: dict[str, Signs] = {}
        self.has_level = True
        self.reason: NoLevel | None = None  # why they have none
        self._conclude()

    def see(self, quantity: str, place: str, value: float) -> None:
        """Take the next loss, or a recorded level."""
        if quantity == LOSS_LEVEL:
            level = level_from_code(value)
            if level is not None:
                self._recorded = level
                self._conclude()
            return
        turns = self._turns
        if place != turns.last:
            turns.take(place)
            if turns.alternate:
                self._conclude()
        if value < 0 or self._signs:
            signs = self._signs.get(place)
            if signs is None:
                signs = self._signs[place] = Signs()
            signs.take(value)
            if self.has_level and signs.keep_changing:
                self._conclude()

    def after_rollback(self) -> None:
        """Forget the losses, but not what they have shown: the training goes on with other weights."""
        self._turns = AlternatingLosses(returns=self._turns.returns if self._turns.alternate else 0)
        self._signs = {place: signs for place, signs in self._signs.items() if signs.keep_changing}

    def _conclude(self) -> None:
        level = self._given
        if level is None or (self._recorded is not None and self._recorded.by_user):
            level = self._recorded
        if level is not None and (level.by_user or level.reason is not None):
            self.reason = level.reason
        elif self._turns.alternate:
            self.reason = NoLevel.ADVERSARIAL
        elif any(signs.keep_changing for signs in self._signs.values()):
            self.reason = NoLevel.SIGNED
        else:
            self.reason = None
        self.has_level = self.reason is None


FEW_CLASSES, MORE_CLASSES = range(2, 11), range(11, 25)
# Alphabets, data sets and vocabularies in use; of all numbers, one would fit any loss. 26-28 letters; 47 and 62 EMNIST;
# 65 tiny Shakespeare; 200 Tiny ImageNet; 365 Places. 101, 102 and 1024 are too near to 100 and 1000 to tell them apart.
USUAL_CLASS_COUNTS: tuple[int, ...] = (
    *(26, 27, 28, 32, 47, 62, 64, 65, 100, 128, 200, 256, 365, 512, 1000, 2048, 4096, 8192),
    *(10_000, 16_384, 21_841, 30_522, 32_000, 32_768, 50_257, 50_304, 65_536, 100_277, 128_256, 151_936),
)
COINCIDENCE = 1 / 3  # share of the losses between chance level for two of `MORE_CLASSES` that are at either
TOLERANCE, TOLERANCE_OF_MANY = 0.012, 0.004
"""Relative distances of a loss to the cost of guessing: at most, and among usual numbers of many classes."""


def classes_of(loss: float, within: float) -> int:
    """Return the number of classes for which this loss is chance level; 0 if no usual number fits."""
    distance, classes = min(
        (abs(loss / math.log(classes) - 1), classes) for classes in (*FEW_CLASSES, *MORE_CLASSES, *USUAL_CLASS_COUNTS)
    )
    return classes if distance <= min(within, _tolerance(classes)) else 0


def _tolerance(classes: int) -> float:
    """Return the largest relative distance to the cost of guessing among as many classes that is no coincidence."""
    if classes in MORE_CLASSES:
        return COINCIDENCE / 2 * math.log1p(1 / classes) / math.log(classes)
    return TOLERANCE if classes in FEW_CLASSES else TOLERANCE_OF_MANY


def stays_at_chance(before: float, now: float, within: float = 0.012, moved: float = 0.9) -> bool:
    """Whether a loss is at chance level and was hardly higher before: then nothing has been learnt meanwhile."""
    return now > 0 and now >= moved * before and classes_of(now, within) > 0


CLASS_SETTINGS = word_set(
    "vocab_size vocabulary_size n_vocab num_vocab num_classes n_classes num_class nclass num_labels n_labels"
)
"""Names of settings that give the number of classes."""


def classes_at_chance(loss: float, recorded: Iterable[int] = ()) -> int:
    """Return the number of classes for which this loss is chance level, recorded ones first; 0 for no such number."""
    recorded = frozenset(recorded)
    candidates = []
    for classes in (*recorded, *FEW_CLASSES, *MORE_CLASSES, *USUAL_CLASS_COUNTS):
        distance = abs(loss / math.log(classes) - 1)
        if distance < (TOLERANCE if classes in recorded else _tolerance(classes)):
            candidates.append((classes not in recorded, distance, classes))
    return min(candidates)[2] if candidates else 0


def recorded_classes(params: Mapping[str, str]) -> tuple[int, ...]:
    """Return the numbers of classes in the settings of a run."""
    values = [
        value for key, value in params.items() if key.replace("/", ".").rpartition(".")[2].lower() in CLASS_SETTINGS
    ]
    return tuple(int(value) for value in values if value.isdecimal() and 1 < int(value) < 10_000_000)
