"""Finds the models and learning rate schedules that belong to optimizers.

In: optimizers. Out: the outermost modules that own their parameters; the outermost schedules of these optimizers,
through accelerate's wrappers. Guarantees: one scan over Python's objects; types are asked, not objects, because
proxies answer for others; nothing of the script is called.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.fx import GraphModule
from torch.nn import Module
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler


def models_of(optimizers: Sequence[Optimizer]) -> list[Module]:
    """The models that own the parameters of these optimizers, in the order of the optimizers."""
    (modules,) = living(Module)
    return covering(outermost(modules), places_of(optimizers))


class ObjectScan:
    """Inside it, whoever asks for these kinds of objects is answered from one walk: nothing is made meanwhile."""

    def __init__(self, *kinds: type) -> None:
        self._kinds = kinds
        self._found: dict[type, list[Any]] = {}

    def __enter__(self) -> None:
        _walks.append(self)

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Answer nobody any more; to end it twice does no harm."""
        _walks[:] = [each for each in _walks if each is not self]
        self._found = {}

    def answer(self, kinds: tuple[type, ...]) -> list[list[Any]] | None:
        """What was asked for; None where this walk does not look for it."""
        if not set(kinds) <= set(self._kinds):
            return None
        if not self._found:
            self._found = dict(zip(self._kinds, _walk(self._kinds), strict=True))
        return [self._found[kind] for kind in kinds]


_walks: list[ObjectScan] = []


def living(*kinds: type) -> list[list[Any]]:
    """All objects of each kind that there are in this process."""
    for each in _walks:  # the outermost first: it looks for the most kinds
        shared = each.answer(kinds)
        if shared is not None:
            return shared
    return _walk(kinds)


def _walk(kinds: tuple[type, ...]) -> list[list[Any]]:
    found: list[list[Any]] = [[] for _ in kinds]
    known: dict[type, list[Any] | None] = {}
    for each in gc.get_objects():
        kind = type(each)
        if kind not in known:
            known[kind] = next((found[at] for at, wanted in enumerate(kinds) if issubclass(kind, wanted)), None)
        where = known[kind]
        if where is not None:
            where.append(each)
    return found


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
