"""Finds what belongs to a training, from its optimizers alone.

In: the optimizers that came to a gate, and the loss scaler of the cycle. Out: the parts of the training. Promised:
one walk over Python's objects, nothing of the script is called; what is found too much would only cost memory, so
averaged copies are taken only where type, names and shapes leave no doubt.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch.fx import GraphModule
from torch.nn import Module
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.swa_utils import AveragedModel

from mlflow_stability.recovery.tensor_names import tensors_of_model
from mlflow_stability.recovery.training_parts import TrainingParts

_Shape = dict[str, tuple[int, ...]]


def find_parts(optimizers: Sequence[Optimizer], scaler: torch.amp.GradScaler | None = None) -> TrainingParts:
    """The parts of the training that these optimizers drive."""
    modules, schedulers = _modules_and_schedulers()
    places: dict[int, int] = {}
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                places.setdefault(id(parameter), len(places))
    roots = _roots(modules)
    owners = [each for each in roots if _first_place(each, places) < math.inf]
    models = sorted(_covering(owners, places), key=lambda each: _first_place(each, places))
    shapes = [_shape_of(each) for each in models]
    strangers = [each for each in roots if _first_place(each, places) == math.inf]
    return TrainingParts(
        optimizers=tuple(optimizers),
        models=tuple(models),
        schedulers=tuple(_outermost(schedulers, optimizers)),
        scaler=scaler,
        averaged=tuple(each for each in strangers if _is_average(each, shapes)),
    )


def _modules_and_schedulers() -> tuple[list[Module], list[LRScheduler]]:
    """All there are in this process; types are asked, never objects, for proxies answer in the name of others."""
    modules: list[Module] = []
    schedulers: list[LRScheduler] = []
    kinds: dict[type, int] = {}
    for each in gc.get_objects():
        kind = type(each)
        which = kinds.get(kind)
        if which is None:
            which = kinds[kind] = 1 if issubclass(kind, Module) else 2 if issubclass(kind, LRScheduler) else 0
        if which == 1:
            modules.append(each)
        elif which == 2:
            schedulers.append(each)
    return modules, schedulers


def _roots(modules: Iterable[Module]) -> list[Module]:
    """Those that are no part of another; one that is still being built is none yet."""
    built = [each for each in modules if "_modules" in vars(each) and "_parameters" in vars(each)]
    inner = {id(child) for each in built for child in each._modules.values()}
    return [each for each in built if id(each) not in inner]


def _covering(owners: Iterable[Module], places: Mapping[int, int]) -> list[Module]:
    """As few as own every parameter: `torch.compile` leaves graphs behind that hold a model's parameters again."""
    owned = [(each, {id(one) for one in each.parameters()} & places.keys()) for each in owners]
    owned.sort(key=lambda pair: (isinstance(pair[0], GraphModule), -len(pair[1])))
    found: list[Module] = []
    seen: set[int] = set()
    for each, parameters in owned:
        if not parameters <= seen:
            found.append(each)
            seen |= parameters
    return found


def _first_place(model: Module, places: Mapping[int, int]) -> float:
    return min((places.get(id(each), math.inf) for each in model.parameters()), default=math.inf)


def _outermost(schedulers: Iterable[LRScheduler], optimizers: Sequence[Optimizer]) -> list[LRScheduler]:
    """The schedulers of these optimizers; those inside a chain or a sequence are told by it."""
    known = {id(each) for each in optimizers}
    ours = [each for each in schedulers if id(vars(each).get("optimizer")) in known]
    inner = {id(child) for each in ours for child in vars(each).get("_schedulers", ())}
    return [each for each in ours if id(each) not in inner]


def _is_average(model: Module, shapes: Sequence[_Shape]) -> bool:
    """Whether this is an averaged copy: torch's own kind, or a frozen twin such as EMA code keeps.

    A twin that could be trained is left alone: it may be the best model so far, which the script keeps for itself.
    """
    frozen = not any(each.requires_grad for each in model.parameters())
    return (frozen or isinstance(model, AveragedModel)) and _shape_of(model) in shapes


def _shape_of(model: Module) -> _Shape:
    return {each.name: tuple(each.tensor.shape) for each in tensors_of_model(model) if not each.is_buffer}
