"""Finds models, the learning rate schedules and the state of optimizers, and names of modules.

Guarantees: one walk over all Python objects, and no further one where nothing was made since; nothing is kept alive;
types are asked, not objects, because proxies answer for others; no code of the script is called; names are the same
with and without DDP, FSDP, ``torch.compile`` and activation checkpoints, and a tied parameter has its first name.

Every object holds one reference to its type, so the references to all types of a kind tell how many objects there are.
If the remembered objects and the youngest ones do not make up that number, only another walk can tell.
"""

from __future__ import annotations

import gc
import math
import sys
import weakref
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from gc import get_objects
from itertools import chain, compress
from typing import Any

from torch import Tensor
from torch.amp import GradScaler
from torch.fx import GraphModule
from torch.nn import Module
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler


class Kind(IntEnum):
    """Kind of objects; a number, because passing a class around adds references to it."""

    MODULE = 0
    OPTIMIZER = 1
    SCHEDULE = 2
    SCALER = 3


TYPES: tuple[type, ...] = (Module, Optimizer, LRScheduler, GradScaler)
YOUNG_GENERATIONS = (0, 1)  # some thousand objects at most


class ObjectMemory:
    """Objects that walks have found, by kind."""

    def __init__(self) -> None:
        self._found: dict[Kind, _Found] = {}

    def keep(self, kind: Kind, objects: Sequence[Any]) -> None:
        # Without the global lock, each thread counts references to types for itself.
        is_locked = getattr(sys, "_is_gil_enabled", None)
        if is_locked is not None and not is_locked():
            return
        try:
            references = [weakref.ref(held) for held in objects]
        except TypeError:  # some have no weak references
            self._found.pop(kind, None)
            return
        types, counts = _counted(kind)
        there = Counter(map(type, objects))
        others = weakref.WeakKeyDictionary({cls: count - there[cls] for cls, count in zip(types, counts, strict=True)})
        self._found[kind] = _Found(references, others)

    def recall(self, kind: Kind) -> list[Any] | None:
        """Return all objects of this kind in the order in which they were found, or None if that is unknown."""
        remembered = self._found.get(kind)
        if remembered is None:
            return None
        types, counts = _counted(kind)
        objects = [held for reference in remembered.references if (held := reference()) is not None]
        there = Counter(map(type, objects))
        lacking: dict[type, int] = {}
        for cls, count in zip(types, counts, strict=True):
            others = remembered.others.get(cls)
            if others is None:  # a class that was made since
                return None
            if count != others + there[cls]:
                lacking[cls] = count - others - there[cls]
        if lacking:
            made = _made(lacking, set(map(id, objects)))
            if made is None:
                return None
            objects += made
            remembered.references = [weakref.ref(held_object) for held_object in objects]
        return objects


class _Found:
    __slots__ = ("others", "references")

    def __init__(self, references: list[weakref.ref[Any]], others: weakref.WeakKeyDictionary[type, int]) -> None:
        self.references = references
        self.others = others  # references to each type that are not those of its objects


def _made(lacking: dict[type, int], remembered: set[int]) -> list[Any] | None:
    if min(lacking.values()) < 0:
        return None
    made = [
        young
        for generation in YOUNG_GENERATIONS
        for young in get_objects(generation)
        if type(young) in lacking and id(young) not in remembered
    ]
    return made if Counter(map(type, made)) == lacking else None


def _counted(kind: Kind) -> tuple[list[type], list[int]]:
    types = list(_derived_from(TYPES[kind]))
    return types, list(map(sys.getrefcount, types))


def _derived_from(kind: type) -> dict[type, None]:
    classes = {kind: None}
    waiting = [kind]
    while waiting:
        derived: list[type] = type.__subclasses__(waiting.pop())
        for cls in derived:
            if cls not in classes:
                classes[cls] = None
                waiting.append(cls)
    return classes


def models_of(optimizers: Sequence[Optimizer]) -> list[Module]:
    """Return the models that own the parameters of these optimizers, in the order of the optimizers."""
    (modules,) = remembered(Kind.MODULE)
    return covering(outermost(modules), places_of(optimizers))


class ObjectScan:
    """Context in which all searches for these kinds of objects share one walk.

    With a memory, an earlier walk is used if it has found all objects that there are now.
    """

    def __init__(self, *kinds: type, memory: ObjectMemory | None = None) -> None:
        self._kinds = kinds
        self._memory = memory
        self._optimizer: Optimizer | None = None
        self._numbers = tuple([TYPES.index(kind) if kind in TYPES else -1 for kind in kinds])
        self._found: dict[int, list[Any]] = {}  # by index of the kind
        self._walked: dict[int, list[Any]] = {}  # not in the memory yet

    def about(self, optimizer: Optimizer) -> ObjectScan:
        """Use remembered modules only if they own the parameters of this optimizer."""
        self._optimizer = optimizer
        return self

    def __enter__(self) -> None:
        _walks.append(self)

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        _walks[:] = [walk for walk in _walks if walk is not self]
        self._found, self._walked, self._optimizer = {}, {}, None

    def answer(self, kinds: tuple[type, ...]) -> list[list[Any]] | None:
        """Return the objects of these types, or None if this walk does not search for them."""
        if not set(kinds) <= set(self._kinds):
            return None
        return self._at([self._kinds.index(kind) for kind in kinds])

    def recall(self, kinds: tuple[Kind, ...]) -> list[list[Any]] | None:
        """Return the objects of these kinds, remembered ones included, or None if they are not searched for."""
        if not set(kinds) <= set(self._numbers):
            return None
        places = [self._numbers.index(kind) for kind in kinds]
        memory, lists = self._memory, self._found
        if memory is None:
            return self._at(places)
        for kind, at in zip(kinds, places, strict=True):
            recalled = None if at in lists else memory.recall(kind)
            if recalled is not None and (kind is not Kind.MODULE or self._own_its_parameters(recalled)):
                lists[at] = recalled
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
        return wanted <= {
            id(parameter) for module in modules for parameter in (vars(module).get("_parameters") or {}).values()
        }


_walks: list[ObjectScan] = []


def living(*kinds: type) -> list[list[Any]]:
    """Return all objects of each type in this process."""
    for walk in _walks:  # the outermost first: it searches for the most kinds
        shared = walk.answer(kinds)
        if shared is not None:
            return shared
    return _walk(kinds)


def remembered(*kinds: Kind) -> list[list[Any]]:
    """Return all objects of each kind in this process, if possible without a walk."""
    for walk in _walks:
        shared = walk.recall(kinds)
        if shared is not None:
            return shared
    return _walk(tuple([TYPES[kind] for kind in kinds]))


def _walk(kinds: tuple[type, ...]) -> list[list[Any]]:
    lists: list[list[Any]] = [[] for _ in kinds]
    objects = gc.get_objects()
    list_of_type: dict[type, list[Any]] = {}
    for cls in set(map(type, objects)):
        index = next((at for at, kind in enumerate(kinds) if issubclass(cls, kind)), None)
        if index is not None:
            list_of_type[cls] = lists[index]
    # In two passes that run no bytecode for each object: there may be millions of them.
    for candidate in compress(objects, map(list_of_type.__contains__, map(type, objects))):
        list_of_type[type(candidate)].append(candidate)
    return lists


def outermost(modules: Iterable[Module]) -> list[Module]:
    """Return the modules that are not part of another one; modules that are being built are left out."""
    built = [module for module in modules if "_modules" in vars(module) and "_parameters" in vars(module)]
    inner = {id(child) for module in built for child in module._modules.values()}
    return [module for module in built if id(module) not in inner]


def parameters_in(module: Module) -> list[Tensor]:
    """Return the parameters of a module; a method that overrides `named_parameters` is not called."""
    return [parameter for _, parameter in Module.named_parameters(module)]


def places_of(optimizers: Iterable[Optimizer]) -> dict[int, int]:
    """Return the place of each parameter of these optimizers, by identity."""
    places: dict[int, int] = {}
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                places.setdefault(id(parameter), len(places))
    return places


def first_place(model: Module, places: Mapping[int, int]) -> float:
    """Return the place of the first parameter of a model; infinite if it has none of them."""
    return min((places.get(id(parameter), math.inf) for parameter in parameters_in(model)), default=math.inf)


def covering(roots: Iterable[Module], places: Mapping[int, int]) -> list[Module]:
    """Return as few models as own every parameter: graphs of `torch.compile` hold a model's parameters again."""
    owned = [(root, {id(parameter) for parameter in parameters_in(root)} & places.keys()) for root in roots]
    owned.sort(key=lambda pair: (isinstance(pair[0], GraphModule), -len(pair[1])))
    result: list[Module] = []
    seen: set[int] = set()
    for root, parameters in owned:
        if not parameters <= seen:
            result.append(root)
            seen |= parameters
    return sorted(result, key=lambda root: first_place(root, places))


def schedules_of(schedules: Iterable[LRScheduler], optimizers: Iterable[Optimizer]) -> list[LRScheduler]:
    """Return the schedules of these optimizers that are not part of another one."""
    wanted = {id(optimizer) for optimizer in optimizers}
    ours = [schedule for schedule in schedules if wanted & _driven(schedule)]
    inner = {id(child) for our in ours for child in parts_of_schedule(our)}
    return [our for our in ours if id(our) not in inner]


def parts_of_schedule(schedule: LRScheduler) -> Sequence[LRScheduler]:
    return [value for value in vars(schedule).get("_schedulers", ()) if isinstance(value, LRScheduler)]


def _driven(schedule: LRScheduler) -> set[int]:
    optimizer = vars(schedule).get("optimizer")
    inside = vars(optimizer).get("optimizer") if isinstance(optimizer, Optimizer) else None
    return {id(driven) for driven in (optimizer, inside) if driven is not None}


ZERO = "ZeroRedundancyOptimizer"  # by name, because importing it warns


def holder_of_state(optimizer: Optimizer) -> Optimizer:
    """Return the optimizer, or the one inside a `ZeroRedundancyOptimizer`, which has the state of this rank."""
    inner = getattr(optimizer, "optim", None) if type(optimizer).__name__ == ZERO else None
    return inner if isinstance(inner, Optimizer) else optimizer


def state_of(optimizer: Optimizer) -> dict[Any, Any]:
    state: dict[Any, Any] = holder_of_state(optimizer).state
    return state


# Names by which wrappers hold the wrapped module.
WRAPPERS = frozenset({"module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})


def plain_name(name: str) -> str:
    """Return a name without the wrappers in it."""
    return ".".join(part for part in name.split(".") if part not in WRAPPERS)


def unwrapped(module: Module) -> Module:
    """Return the model inside wrappers: it runs without a compiler or collectives."""
    for _ in range(len(WRAPPERS) + 1):
        inner = next((module._modules[name] for name in WRAPPERS if set(module._modules.keys()) == {name}), None)
        if inner is None:
            return module
        module = inner
    return module


def owners_of_parameters(models: Sequence[Module]) -> dict[int, str]:
    """Return the name of the module that owns each parameter, by identity, in the order of the models.

    Names of several models begin with the model's class: ``Generator.net.0``, or ``Net_0.up`` where classes repeat.
    The outermost module has the name of its class.
    """
    names = names_of_modules(models)
    owners: dict[int, str] = {}
    for module in chain.from_iterable(map(Module.modules, models)):
        for parameter in module._parameters.values():
            if parameter is not None:
                owners.setdefault(id(parameter), names[id(module)])
    return owners


def names_of_modules(models: Sequence[Module]) -> dict[int, str]:
    """Return the name of each module, by identity, as of owners of parameters."""
    classes = [_innermost_class(model) for model in models]
    often = Counter(classes)
    names: dict[int, str] = {}
    for at, (model, title) in enumerate(zip(models, classes, strict=True)):
        title = f"{title}_{at}" if often[title] > 1 else title
        prefix = f"{title}." if len(models) > 1 else ""
        modules = list(Module.named_modules(model))
        owners = [plain_name(name) for name, module in modules if module._parameters]
        is_plain = len(set(owners)) == len(owners)  # else two modules would have the same name without wrappers
        for path, module in modules:
            name = plain_name(path) if is_plain else path
            names.setdefault(id(module), prefix + name if name else title)
    return names


def _innermost_class(model: Module) -> str:
    classes = [type(module) for name, module in Module.named_modules(model) if not plain_name(name)]
    return classes[-1].__name__
