"""The parts of one training, as far as they are known.

Guarantees: parts are held weakly. Python's objects are searched only where an optimizer brings unknown parameters, a
part is gone, or modules of the models' types were made since the last search, which is checked before a state is
copied.
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

from mlflow_stability.errors import ChangingPartsError
from mlflow_stability.probes.model_discovery import parameters_in, places_of
from mlflow_stability.recovery.state.training_parts import TrainingParts, WeakTrainingParts, find_parts

MOST_SEARCHES = 32  # a script that makes an optimizer for every sample has no state worth keeping
FREE_SEARCHES = 4  # searches for new modules that are made whatever they cost
SEARCH_SHARE = 0.005  # share of the training's time for further ones: a search takes 0.05 to 0.3 s
_Item = TypeVar("_Item")


class PartsChange(Enum):
    NONE = "none"
    OPTIMIZER = "optimizer"  # another optimizer of the same models is about to make its first step
    GROWN = "grown"  # the same optimizers train other models than before
    ANOTHER = "another"  # another training, or the first one


class KnownParts:
    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._groups: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()
        """Number of parameter groups of each known optimizer."""
        self.settled: dict[int, int] = {}  # the same by id while all parts are alive: those optimizers need no `meet`
        self._order: list[weakref.ref[Optimizer]] = []
        self._parts: WeakTrainingParts | None = None
        self._searches = self._later_searches = 0
        self._types: tuple[weakref.ref[type], ...] = ()
        """Types of the models' modules; weak, as references to them are counted."""
        self._modules: list[weakref.ref[Module]] = []  # of the models
        self._has_wrappers = False  # whether a model was gone before its optimizers, as one made for each pass is
        self._references: tuple[int, ...] = ()  # their reference counts at the last search: every instance holds one
        self._searched_at = self._seconds = 0.0

    def meet(self, optimizer: Optimizer, scaler: Any) -> PartsChange:
        change = self._note(optimizer, scaler)
        if self.are_there():
            self.settled[id(optimizer)] = len(optimizer.param_groups)
        return change

    def _note(self, optimizer: Optimizer, scaler: Any) -> PartsChange:
        groups, known_groups = len(optimizer.param_groups), self._groups.get(optimizer)
        if known_groups == groups and self.are_there():
            return PartsChange.NONE
        self._groups[optimizer] = groups
        if known_groups is None:
            self._order.append(weakref.ref(optimizer))
        parts = self.alive()
        if parts is not None and places_of([optimizer]).keys() <= {
            id(parameter) for model in parts.models for parameter in parameters_in(model)
        }:
            if known_groups is not None:
                return PartsChange.NONE
            self._hold(dataclasses.replace(parts, optimizers=(*parts.optimizers, optimizer)))
            self._references = ()  # its schedules are still to be found
            return PartsChange.OPTIMIZER
        self._has_wrappers |= known_groups is not None and parts is None
        self._searches += 1
        if self._searches > MOST_SEARCHES:
            self._parts = None
            self.settled.clear()
            raise ChangingPartsError(f"the training's optimizers changed {MOST_SEARCHES} times")
        self._order = [reference for reference in self._order if reference() is not None]
        self._search(self.optimizers(), scaler)
        return PartsChange.ANOTHER if known_groups is None or parts is None else PartsChange.GROWN

    def look_again(self, scaler: Any, *, at_once: bool = False) -> PartsChange:
        """Search for objects made since the last search; `at_once`: whatever it costs."""
        before = self.alive()
        if before is None or self._references == _references_to(self._types):
            return PartsChange.NONE
        spent = self._seconds > SEARCH_SHARE * (self._clock() - self._searched_at)
        if self._later_searches >= FREE_SEARCHES and spent and not at_once:
            return PartsChange.NONE
        self._later_searches += 1
        after = self._search(before.optimizers, scaler, before)
        same = [id(model) for model in before.models] == [id(model) for model in after.models]
        return PartsChange.NONE if same else PartsChange.GROWN

    def are_there(self) -> bool:
        return self._parts is not None and self._parts.are_there()

    def alive(self) -> TrainingParts | None:
        """Return the parts; None before they are known, or once one of them is gone."""
        return None if self._parts is None else self._parts.alive()

    def optimizers(self) -> list[Optimizer]:
        """Return the living optimizers, in the order of their first steps."""
        return [optimizer for reference in self._order if (optimizer := reference()) is not None]

    def _hold(self, parts: TrainingParts) -> None:
        settled = self.settled = {}  # a new dict: parts that were replaced may be deleted at any time
        self._parts = WeakTrainingParts(parts, lambda _: settled.clear())

    def _search(
        self, optimizers: Sequence[Optimizer], scaler: Any, before: TrainingParts | None = None
    ) -> TrainingParts:
        began = self._clock()
        lasting = [module for reference in self._modules if (module := reference()) is not None]
        parts = find_parts(optimizers, scaler, lasting if self._has_wrappers else ())
        if before is not None:  # a copy of a state knows schedules and averages by their number
            schedulers = _keep_order(before.schedulers, parts.schedulers)
            averaged = _keep_order(before.averaged, parts.averaged)
            parts = dataclasses.replace(parts, schedulers=schedulers, averaged=averaged)
        self._hold(parts)
        modules = [module for model in parts.models for module in Module.modules(model)]
        self._modules = [weakref.ref(module) for module in modules]
        self._types = tuple(map(weakref.ref, {AveragedModel, *map(type, modules)}))
        self._references = _references_to(self._types)
        self._searched_at = self._clock()
        self._seconds = self._searched_at - began
        return parts


def _references_to(types: Sequence[weakref.ref[type]]) -> tuple[int, ...]:
    return tuple([sys.getrefcount(reference()) for reference in types])


def _keep_order(before: Sequence[_Item], now: Sequence[_Item]) -> tuple[_Item, ...]:
    ids = {id(part) for part in before}
    there = {id(part) for part in now}
    return (*(part for part in before if id(part) in there), *(part for part in now if id(part) not in ids))
