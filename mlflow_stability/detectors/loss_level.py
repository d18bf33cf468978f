"""Tells whether the level of a recording's losses measures progress.

In: the losses, one after the other, and what is recorded about them. Out: `has_level`. A loss has no level where the
record says so, where trainings take turns as the halves of a GAN do, and where its sign keeps changing. Detectors and
rules of whole curves use the same definitions and thresholds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.vocabulary.loss_level import LOSS_LEVEL, LossLevel, NoLevel, level_of_code

RISE = 10.0
"""Minimum ratio of a loss, or of a gradient norm, to its baseline in adversarial training: a GAN whose learning rate is
far too high has losses at 10 to 100 times their baseline, and nothing else shows it."""
GRADIENT_RISE = 100.0
"""Minimum ratio of a gradient norm where the loss has no level for another reason: when a DQN copies its target, errors
and gradients rise up to fifteenfold for some steps."""
LOSS_RISE = 1000.0
"""Minimum ratio of a loss without a level to its size in the first steps: above it, it has diverged all the same."""
LEAST_SIZE = 10.0
"""Minimum size of a loss without a level that has diverged: sparse rewards make a loss of 1e-6 grow a thousandfold."""
RETURNS = 4
"""Number of times that a loss comes again after another's, from which on trainings take turns."""
STRETCH = 12
"""Number of losses of one sign in a row that make a stretch."""
STRETCHES = 6
"""Number of stretches, of alternating signs, from which a loss is signed: a density that crosses zero has two, and up
to four where noise takes it back."""
WINDOW = 64
"""Number of losses in one window, ..."""
MIXED_WINDOWS = 8
"""... of which so many in a row hold both signs where a loss is noise around zero."""
MIXED_SHARE = 0.2
"""Minimum share of the rarer sign in each of them."""
STEADY = 0.05
"""Maximum change of the share of negative losses from the first half of them to the second: a density that crosses
zero changes it."""


@dataclass(slots=True)
class AlternatingLosses:
    """Whose loss came last, and how often one came again after another's."""

    last: str | None = None
    seen: set[str] = field(default_factory=set)
    returns: int = 0

    @property
    def alternate(self) -> bool:
        """Whether trainings take turns; those that follow one upon the other do not."""
        return self.returns >= RETURNS

    def take(self, place: str) -> None:
        """See whose loss comes next."""
        if place != self.last:
            self.returns += place in self.seen
            self.seen.add(place)
            self.last = place


def take_turns(steps_of_places: Sequence[Sequence[int] | NDArray[np.int64]]) -> bool:
    """The same of whole curves, each with the steps of its losses; at one step they come in their order."""
    if len(steps_of_places) < 2:
        return False
    lengths = [len(each) for each in steps_of_places]
    steps = np.concatenate([np.asarray(each, np.int64) for each in steps_of_places])
    places = np.repeat(np.arange(len(lengths)), lengths)[np.argsort(steps, kind="stable")]
    changes = int(np.count_nonzero(places[1:] != places[:-1]))
    return bool(changes - np.count_nonzero(lengths) + 1 >= RETURNS)  # the first change to a place is no return


@dataclass(slots=True)
class Signs:
    """The signs of a loss: whether long stretches of both alternate, or both are mixed for long."""

    negative: bool | None = None
    """The sign of the current run of losses; None before the first negative one."""
    run: int = 0
    """Number of losses in it."""
    stretches: int = 0
    last: bool | None = None
    """The sign of the last stretch."""
    count: int = 0
    """Number of losses in the current window, ..."""
    below: int = 0
    """... and how many of them are negative."""
    shares: list[float] = field(default_factory=list)
    """The share of negative losses in the last windows, which are mixed."""
    keep_changing: bool = False
    """Whether the loss is signed."""

    def take(self, value: float) -> None:
        """See the next loss."""
        negative = value < 0
        self.count += 1
        self.below += negative
        if self.count == WINDOW:
            self._end_window()
        if negative is not self.negative:
            self.negative, self.run = negative, 1
            return
        self.run += 1
        if self.run == STRETCH and negative is not self.last:
            self.stretches += 1
            self.last = negative
            self.keep_changing = self.keep_changing or self.stretches >= STRETCHES

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
            self.keep_changing = self.keep_changing or change <= STEADY


def keeps_changing_sign(values: Iterable[float]) -> bool:
    """The same of a whole curve."""
    signs = Signs()
    for value in values:
        signs.take(value)
    return signs.keep_changing


class LossLevels:
    """What is known about the losses of one recording so far."""

    __slots__ = ("_given", "_recorded", "_signs", "_turns", "has_level", "reason")

    def __init__(self, given: LossLevel | None = None) -> None:
        self._given = given
        """What is known from outside, also where the losses themselves are not shown."""
        self._recorded: LossLevel | None = None
        self._turns = AlternatingLosses()
        self._signs: dict[str, Signs] = {}
        self.has_level = True
        """Whether the level measures progress, as far as is known."""
        self.reason: NoLevel | None = None
        """Why it does not."""
        self._conclude()

    def see(self, quantity: str, place: str, value: float) -> None:
        """See the next loss, or what was recorded about the losses."""
        if quantity == LOSS_LEVEL:
            self._hear(value)
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

    def _hear(self, code: float) -> None:
        level = level_of_code(code)
        if level is not None:
            self._recorded = level
            self._conclude()

    def after_rollback(self) -> None:
        """Forget the losses so far, but not what they have shown: the training goes on with other weights."""
        self._turns = AlternatingLosses(returns=self._turns.returns if self._turns.alternate else 0)
        self._signs = {place: each for place, each in self._signs.items() if each.keep_changing}

    def _conclude(self) -> None:
        told = self._recorded if self._given is None or (self._recorded and self._recorded.by_user) else self._given
        if told is not None and (told.by_user or told.reason is not None):
            self.reason = told.reason
        elif self._turns.alternate:
            self.reason = NoLevel.ADVERSARIAL
        elif any(each.keep_changing for each in self._signs.values()):
            self.reason = NoLevel.SIGNED
        else:
            self.reason = None
        self.has_level = self.reason is None


SMALL_CLASS_COUNTS = range(2, 25)
"""Numbers of classes that lie so far apart that each may be meant."""
# The alphabets, data sets and vocabularies that people use. Not all numbers: the logarithm of some is near to any loss.
# 26-28 letters; 47 and 62 EMNIST; 65 tiny Shakespeare; 200 Tiny ImageNet; 365 Places. 101, 102 and 1024 lie so near to
# 100 and 1000 that a loss does not tell them apart.
USUAL_CLASS_COUNTS: tuple[int, ...] = (
    *(26, 27, 28, 32, 47, 62, 64, 65, 100, 128, 200, 256, 365, 512, 1000, 2048, 4096, 8192),
    *(10_000, 16_384, 21_841, 30_522, 32_000, 32_768, 50_257, 50_304, 65_536, 100_277, 128_256, 151_936),
)


def classes_of(loss: float, within: float) -> int:
    """The number of classes among which guessing gives this loss; 0 if there is none that people use."""
    away, classes = min((abs(loss / math.log(each) - 1), each) for each in (*SMALL_CLASS_COUNTS, *USUAL_CLASS_COUNTS))
    return classes if away <= within else 0


def stays_at_chance(before: float, now: float, within: float = 0.012, moved: float = 0.9) -> bool:
    """Whether a loss is what guessing costs and was hardly higher before: then nothing has been learnt meanwhile."""
    return now > 0 and now >= moved * before and classes_of(now, within) > 0
