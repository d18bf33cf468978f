"""Finds the models and learning rate schedules that belong to optimizers.

In: optimizers. Out: the outermost modules that own their parameters; the outermost schedules of these optimizers,
through accelerate's wrappers. Guarantees: one scan over Python's objects, and no further one where nothing was made
since; types are asked, not objects, because proxies answer for others; nothing of the script is called.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import compress
from typing import Any

from torch import Tensor
from torch.fx import GraphModule
from torch.nn import Module
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from mlflow_stability.probes.objects.object_memory import TYPES, Kind, ObjectMemory


def models_of(optimizers: Sequence[Optimizer]) -> list[Module]:
    """The models that own the parameters of these optimizers, in the order of the optimizers."""
    (modules,) = remembered(Kind.MODULE)
    return covering(outermost(modules), places_of(optimizers))


class ObjectScan:
    """Inside it, whoever asks for these kinds of objects is answered from one walk: nothing is made meanwhile.

    With a memory, from a walk of before, where that has found all that there is now.
    """

    def __init__(self, *kinds: type, memory: ObjectMemory | None = None) -> None:
        self._kinds = kinds
        self._memory = memory
        self._optimizer: Optimizer | None = None
        self._numbers = tuple([TYPES.index(each) if each in TYPES else -1 for each in kinds])
        self._found: dict[int, list[Any]] = {}
        """By the place among the kinds."""
        self._walked: dict[int, list[Any]] = {}
        """What of that the memory does not have yet."""

    def about(self, optimizer: Optimizer) -> ObjectScan:
        """This one, for what belongs to an optimizer: its parameters are in a model that is remembered, or none is."""
        self._optimizer = optimizer
        return self

    def __enter__(self) -> None:
        _walks.append(self)

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Answer nobody any more; to end it twice does no harm."""
        _walks[:] = [each for each in _walks if each is not self]
        self._found, self._walked, self._optimizer = {}, {}, None

    def answer(self, kinds: tuple[type, ...]) -> list[list[Any]] | None:
        """What was asked for; None where this walk does not look for it."""
        if not set(kinds) <= set(self._kinds):
            return None
        return self._at([self._kinds.index(kind) for kind in kinds])

    def recall(self, kinds: tuple[Kind, ...]) -> list[list[Any]] | None:
        """The same; what a walk of before has found is remembered."""
        if not set(kinds) <= set(self._numbers):
            return None
        places = [self._numbers.index(kind) for kind in kinds]
        memory, found = self._memory, self._found
        if memory is None:
            return self._at(places)
        for kind, at in zip(kinds, places, strict=True):
            known = None if at in found else memory.recall(kind)
            if known is not None and (kind is not Kind.MODULE or self._own_its_parameters(known)):
                found[at] = known
        answer = self._at(places)
        for kind, at in zip(kinds, places, strict=True):
            if at in self._walked:
                memory.keep(kind, self._walked.pop(at))
        return answer

    def _at(self, places: Sequence[int]) -> list[list[Any]]:
        if not self._found.keys() >= set(places):
            self._walked = dict(enumerate(_walk(self._kinds)))
            self._found |= self._walked
        return [self._found[at] for at in places]

    def _own_its_parameters(self, modules: Iterable[Module]) -> bool:
        if self._optimizer is None:
            return True
        wanted = places_of([self._optimizer]).keys()
        return wanted <= {id(one) for each in modules for one in (vars(each).get("_parameters") or {}).values()}


_walks: list[ObjectScan] = []


def living(*kinds: type) -> list[list[Any]]:
    """All objects of each kind that there are in this process."""
    for each in _walks:  # the outermost first: it looks for the most kinds
        shared = each.answer(kinds)
        if shared is not None:
            return shared
    return _walk(kinds)


def remembered(*kinds: Kind) -> list[list[Any]]:
    """The same as `living`, where possible without a walk."""
    for each in _walks:
        shared = each.recall(kinds)
        if shared is not None:
            return shared
    return _walk(tuple([TYPES[each] for each in kinds]))


def _walk(kinds: tuple[type, ...]) -> list[list[Any]]:
    lists: list[list[Any]] = [[] for _ in kinds]
    objects = gc.get_objects()
    found: dict[type, list[Any]] = {}
    for kind in set(map(type, objects)):
        wanted = next((at for at, each in enumerate(kinds) if issubclass(kind, each)), None)
        if wanted is not None:
            found[kind] = lists[wanted]
    # In two passes that run no bytecode for each object: there may be millions of them.
    for each in compress(objects, map(found.__contains__, map(type, objects))):
        found[type(each)].append(each)
    return lists


def outermost(modules: Iterable[Module]) -> list[Module]:
    """Those that are no part of another; one that is still being built is none yet."""
    built = [each for each in modules if "_modules" in vars(each) and "_parameters" in vars(each)]
    inner = {id(child) for each in built for child in each._modules.values()}
    return [each for each in built if id(each) not in inner]


def parameters_in(module: Module) -> list[Tensor]:
    """The parameters of a module, as torch knows them: what it may say of itself instead is not asked."""
    return [each for _, each in Module.named_parameters(module)]


def places_of(optimizers: Iterable[Optimizer]) -> dict[int, int]:
    """The parameters of these optimizers, by identity, and at which place each comes."""
    places: dict[int, int] = {}
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                places.setdefault(id(parameter), len(places))
    return places


def first_place(model: Module, places: Mapping[int, int]) -> float:
    """Where the first of its parameters comes; infinite where it has none of them."""
    return min((places.get(id(each), math.inf) for each in parameters_in(model)), default=math.inf)


def covering(roots: Iterable[Module], places: Mapping[int, int]) -> list[Module]:
    """As few as own every parameter: `torch.compile` leaves graphs behind that hold a model's parameters again."""
    owned = [(each, {id(one) for one in parameters_in(each)} & places.keys()) for each in roots]
    owned.sort(key=lambda pair: (isinstance(pair[0], GraphModule), -len(pair[1])))
    found: list[Module] = []
    seen: set[int] = set()
    for each, parameters in owned:
        if not parameters <= seen:
            found.append(each)
            seen |= parameters
    return sorted(found, key=lambda each: first_place(each, places))


def schedules_of(found: Iterable[LRScheduler], optimizers: Iterable[Optimizer]) -> list[LRScheduler]:
    """Those of these optimizers that are no part of another one."""
    known = {id(each) for each in optimizers}
    ours = [each for each in found if known & _driven(each)]
    inner = {id(child) for each in ours for child in parts_of_schedule(each)}
    return [each for each in ours if id(each) not in inner]


def parts_of_schedule(schedule: LRScheduler) -> Sequence[LRScheduler]:
    """What a chain or a sequence is made of."""
    return [each for each in vars(schedule).get("_schedulers", ()) if isinstance(each, LRScheduler)]


def _driven(schedule: LRScheduler) -> set[int]:
    """Its optimizer, and, where that is accelerate's, the one inside."""
    optimizer = vars(schedule).get("optimizer")
    inside = vars(optimizer).get("optimizer") if isinstance(optimizer, Optimizer) else None
    return {id(each) for each in (optimizer, inside) if each is not None}
