"""The parts of one training, as far as they were met.

In: optimizers before their steps, and states that are about to be copied. Out: the parts, and in what they have changed
since. Guarantees: parts are held weakly; Python's objects are searched only where an optimizer brings parameters that
no known model has, a part is gone, or modules of the models' types were made since the last search, which is looked
for where a state is copied; an ordinary step looks its optimizer up in
`settled`.
"""

from __future__ import annotations

import dataclasses
import sys
import time
import weakref
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, TypeVar

from torch.nn import Module
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel

from mlflow_stability.probes.objects import parameters_in, places_of
from mlflow_stability.recovery.state import TrainingParts, WeakTrainingParts, find_parts

MOST_SEARCHES = 32
"""A script that makes an optimizer for every sample is no training whose state could be kept."""
FREE_SEARCHES = 4
"""So many searches for modules that were made later are begun at once, whatever they cost."""
SEARCH_SHARE = 0.005
"""The largest share of the training's time that further ones take: a search takes 0.05 to 0.3 s."""
_Item = TypeVar("_Item")


class PartsChange(Enum):
    """In what the parts differ from those of before."""

    NONE = "none"
    OPTIMIZER = "optimizer"
    """Another optimizer of the same models is about to make its first step."""
    GROWN = "grown"
    """The optimizers are the same, and change other models than before."""
    ANOTHER = "another"
    """It is another training, or the first one."""


class ChangingPartsError(RuntimeError):
    """Optimizers come and go too fast."""


class KnownParts:
    """The parts of one training, as far as they were met."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._groups: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()
        """How many parameter groups each optimizer had when it was met."""
        self.settled: dict[int, int] = {}
        """The same by identity, as long as all parts are there: those optimizers need not be met again."""
        self._order: list[weakref.ref[Optimizer]] = []
        self._parts: WeakTrainingParts | None = None
        self._searches = self._later_searches = 0
        self._types: tuple[weakref.ref[type], ...] = ()
        """Weakly, for others count references to them as well."""
        self._references: tuple[int, ...] = ()
        """How many references to each of these types there were at the last search: every object holds one."""
        self._searched_at = self._seconds = 0.0

    def meet(self, optimizer: Optimizer, scaler: Any) -> PartsChange:
        """Take note of an optimizer before its step."""
        change = self._met(optimizer, scaler)
        if self.are_there():
            self.settled[id(optimizer)] = len(optimizer.param_groups)
        return change

    def _met(self, optimizer: Optimizer, scaler: Any) -> PartsChange:
        groups, known = len(optimizer.param_groups), self._groups.get(optimizer)
        if known == groups and self.are_there():
            return PartsChange.NONE
        self._groups[optimizer] = groups
        if known is None:
            self._order.append(weakref.ref(optimizer))
        parts = self.alive()
        if parts is not None and _own(parts.models, optimizer):
            if known is not None:
                return PartsChange.NONE
            self._hold(dataclasses.replace(parts, optimizers=(*parts.optimizers, optimizer)))
            self._references = ()  # its schedules are still to be found
            return PartsChange.OPTIMIZER
        self._searches += 1
        if self._searches > MOST_SEARCHES:
            self._parts = None
            self.settled.clear()
            raise ChangingPartsError(f"the training's optimizers changed {MOST_SEARCHES} times")
        self._order = [each for each in self._order if each() is not None]
        self._search(self.optimizers(), scaler)
        return PartsChange.ANOTHER if known is None or parts is None else PartsChange.GROWN

    def look_again(self, scaler: Any, *, at_once: bool = False) -> PartsChange:
        """Search for what was made since the last search, where anything may have been.

        `at_once`: whatever it costs.
        """
        known = self.alive()
        if known is None or self._references == _references_to(self._types):
            return PartsChange.NONE
        spent = self._seconds > SEARCH_SHARE * (self._clock() - self._searched_at)
        if self._later_searches >= FREE_SEARCHES and spent and not at_once:
            return PartsChange.NONE
        self._later_searches += 1
        found = self._search(known.optimizers, scaler, known)
        same = [id(each) for each in known.models] == [id(each) for each in found.models]
        return PartsChange.NONE if same else PartsChange.GROWN

    def are_there(self) -> bool:
        """Whether `alive` would give them."""
        return self._parts is not None and self._parts.are_there()

    def alive(self) -> TrainingParts | None:
        """The parts; None where there are none yet, or one of them is gone."""
        return None if self._parts is None else self._parts.alive()

    def optimizers(self) -> list[Optimizer]:
        """The optimizers that are still there, in the order in which they first stepped."""
        return [found for each in self._order if (found := each()) is not None]

    def _hold(self, parts: TrainingParts) -> None:
        settled = self.settled = {}  # its own, for parts that were replaced may go at any time
        self._parts = WeakTrainingParts(parts, lambda _: settled.clear())

    def _search(
        self, optimizers: Sequence[Optimizer], scaler: Any, known: TrainingParts | None = None
    ) -> TrainingParts:
        began = self._clock()
        found = find_parts(optimizers, scaler)
        if known is not None:  # a copy of a state knows schedules and averages by their number
            schedulers = _known_first(known.schedulers, found.schedulers)
            averaged = _known_first(known.averaged, found.averaged)
            found = dataclasses.replace(found, schedulers=schedulers, averaged=averaged)
        self._hold(found)
        modules = (each for model in found.models for each in Module.modules(model))
        self._types = tuple(map(weakref.ref, {AveragedModel, *map(type, modules)}))
        self._references = _references_to(self._types)
        self._searched_at = self._clock()
        self._seconds = self._searched_at - began
        return found


def _own(models: Sequence[Module], optimizer: Optimizer) -> bool:
    """Whether these models have all parameters of an optimizer."""
    return places_of([optimizer]).keys() <= {id(each) for model in models for each in parameters_in(model)}


def _references_to(types: Sequence[weakref.ref[type]]) -> tuple[int, ...]:
    return tuple([sys.getrefcount(each()) for each in types])


def _known_first(known: Sequence[_Item], found: Sequence[_Item]) -> tuple[_Item, ...]:
    ids = {id(each) for each in known}
    there = {id(each) for each in found}
    return (*(each for each in known if id(each) in there), *(each for each in found if id(each) not in ids))
