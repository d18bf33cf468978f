"""The parts of one training: models, optimizers, schedulers, loss scaler, averaged copies, and their tensors by name.

In: the objects of a training, or its optimizers alone. Out: the same objects, for the duration of one call; what splits
their state over processes; parameters and buffers under names that hold in the next process too. Guarantees: between
calls parts are held weakly, so that a script that drops its model gets the memory back; other processes are not asked.
One walk over Python's objects finds the parts, and calls nothing of the script; averaged copies are taken only where
type, names and shapes leave no doubt. A tensor has one name, however often it is tied; names do not depend on wrappers
(DDP, ``torch.compile``, FSDP, activation checkpoints), nor on the order of parameter groups.
"""

from __future__ import annotations

import dataclasses
import math
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.swa_utils import AveragedModel

from mlflow_stability.probes.objects import (
    ZERO,
    Kind,
    covering,
    first_place,
    living,
    outermost,
    places_of,
    plain_name,
    remembered,
    schedules_of,
)
from mlflow_stability.probes.tensors import is_of_one_rank, world_size
from mlflow_stability.recovery.state.host_copy import local_part


@dataclass(frozen=True, slots=True)
class TrainingParts:
    """The objects whose state together is the state of a training."""

    optimizers: tuple[Optimizer, ...]
    models: tuple[Module, ...] = ()
    """The outermost modules that own what the optimizers change, in the order of the optimizers' parameters."""
    schedulers: tuple[LRScheduler, ...] = ()
    scaler: torch.amp.GradScaler | None = None
    averaged: tuple[Module, ...] = ()
    """Averaged copies of the models: they follow the weights, and are restored with them."""


class WeakTrainingParts:
    """Remembers the parts of a training without keeping them alive."""

    def __init__(self, parts: TrainingParts, on_end: Callable[[Any], None] | None = None) -> None:
        """`on_end` is called when a model or an optimizer is gone."""
        self._needed = _weakly((*parts.optimizers, *parts.models), on_end)
        self._optimizers = len(parts.optimizers)
        """How many of them are optimizers; models are behind them."""
        self._schedulers = _weakly(parts.schedulers)
        self._scaler = None if parts.scaler is None else weakref.ref(parts.scaler)
        self._averaged = _weakly(parts.averaged)

    def alive(self) -> TrainingParts | None:
        """The parts; None once a model or an optimizer is gone, for then it is another training."""
        needed = _living(self._needed)
        if len(needed) < len(self._needed):
            return None
        return TrainingParts(
            optimizers=needed[: self._optimizers],
            models=needed[self._optimizers :],
            schedulers=_living(self._schedulers),
            scaler=None if self._scaler is None else self._scaler(),
            averaged=_living(self._averaged),
        )

    def are_there(self) -> bool:
        """Whether `alive` would give them."""
        return not [each for each in self._needed if each() is None]


def _weakly(objects: Sequence[Any], on_end: Callable[[Any], None] | None = None) -> tuple[weakref.ref[Any], ...]:
    return tuple(weakref.ref(each, on_end) for each in objects)


def _living(references: Sequence[weakref.ref[Any]]) -> tuple[Any, ...]:
    return tuple(each for reference in references if (each := reference()) is not None)


_SPLITTING = ("FullyShardedDataParallel", ZERO)
"""Kinds of modules and optimizers that split what they hold without saying so of their tensors."""


class SplitBy(Enum):
    """What splits the state of a training over processes; the value is how it is said of a name."""

    STAGE = "pipeline stage {name}"
    OPTIMIZER = "optimizer {name}"
    MODULE = "module {name}"
    RANK = "parameter {name} is another one on each rank"
    SHARDS = "parameter {name} is a {kind}"


@dataclass(frozen=True, slots=True)
class StateSplit:
    """What splits the state of a training over processes."""

    by: SplitBy
    name: str
    """The kind of stage, optimizer or module, or the parameter."""
    kind: str = ""
    """Of a sharded parameter: its type."""

    def __str__(self) -> str:
        return self.by.value.format(name=self.name, kind=self.kind)


def _stage_of_pipeline(parts: TrainingParts) -> StateSplit | None:
    """The pipeline stage that these models are; their parameters' names may be those of other stages too."""
    stages = sys.modules.get("torch.distributed.pipelining.stage")
    if stages is None or not torch.distributed.is_initialized():
        return None
    modules = {id(each) for model in parts.models for each in Module.modules(model)}
    (found,) = living(stages.PipelineStage.__base__)  # also stages that are made from a traced model
    stage = next((each for each in found if id(vars(each).get("submod")) in modules), None)
    return None if stage is None else StateSplit(SplitBy.STAGE, type(stage).__name__)


def holds_shards(parts: TrainingParts) -> bool:
    """Whether all that is split over processes are sharded parameters, each of which knows its part of the whole."""
    modules = [each for model in parts.models for each in Module.modules(model)]
    if _stage_of_pipeline(parts) is not None or any(
        type(each).__name__ in _SPLITTING for each in (*parts.optimizers, *modules)
    ):
        return False
    if any(is_of_one_rank(each) for model in parts.models for each in Module.parameters(model)):
        return False
    return any(local_part(each) is not each for model in parts.models for each in Module.parameters(model))


def any_shards() -> bool:
    """Whether an optimizer of this process trains parameters that are sharded."""
    (optimizers,) = living(Optimizer)
    parameters = (parameter for each in optimizers for group in each.param_groups for parameter in group["params"])
    return any(local_part(each) is not each for each in parameters)


def what_splits(parts: TrainingParts) -> StateSplit | None:
    """``FSDP``-like modules, sharded parameters, or optimizers that share their state out among processes."""
    if (stage := _stage_of_pipeline(parts)) is not None:
        return stage
    for optimizer in parts.optimizers:
        if type(optimizer).__name__ in _SPLITTING:
            return StateSplit(SplitBy.OPTIMIZER, type(optimizer).__name__)
    for model in parts.models:
        for module in Module.modules(model):
            if type(module).__name__ in _SPLITTING:
                return StateSplit(SplitBy.MODULE, type(module).__name__)
        for name, parameter in Module.named_parameters(model):
            if is_of_one_rank(parameter) and world_size() > 1:
                return StateSplit(SplitBy.RANK, name)
            if local_part(parameter) is not parameter:
                return StateSplit(SplitBy.SHARDS, name, type(parameter).__name__)
    return None


@dataclass(frozen=True, slots=True)
class NamedTensor:
    """A parameter or buffer under its name."""

    name: str
    tensor: Tensor
    is_buffer: bool = False
    is_cache: bool = False
    """A buffer that is not part of the model's own ``state_dict``: masks, tables of positions."""
    is_average: bool = False
    """It belongs to an averaged copy."""

    @property
    def is_trained(self) -> bool:
        """Whether it is a parameter that is not frozen."""
        return not self.is_buffer and self.tensor.requires_grad


def named_tensors(parts: TrainingParts) -> list[NamedTensor]:
    """Every parameter and buffer of the training, each once."""
    found: dict[int, NamedTensor] = {}
    for averaged, models in ((False, parts.models), (True, parts.averaged)):
        for number, model in enumerate(models):
            before = f"average_{number}/" if averaged else "" if len(models) == 1 else f"model_{number}/"
            for each in tensors_of_model(model):
                named = dataclasses.replace(each, name=before + each.name, is_average=averaged)
                found.setdefault(id(each.tensor), named)
    for number, optimizer in enumerate(parts.optimizers):
        parameters = (each for group in optimizer.param_groups for each in group["params"])
        for position, parameter in enumerate(parameters):
            name = f"optimizer_{number}/parameter_{position}"
            found.setdefault(id(parameter), NamedTensor(name, parameter))
    return list(found.values())


def tensors_of_model(model: Module) -> list[NamedTensor]:
    """The parameters and buffers of one model under plain names; under their own where two would be called alike."""
    raw = [each for each in _raw_tensors(model) if not is_lazy(each.tensor)]
    plain = [plain_name(each.name) for each in raw]
    if len(set(plain)) < len(plain):
        return raw
    return [dataclasses.replace(each, name=name) for name, each in zip(plain, raw, strict=True)]


def _raw_tensors(model: Module) -> Iterator[NamedTensor]:
    for name, parameter in Module.named_parameters(model):
        yield NamedTensor(name, parameter)
    seen: set[int] = set()
    for path, module in Module.named_modules(model):
        for name, buffer in module._buffers.items():
            if buffer is not None and id(buffer) not in seen:
                seen.add(id(buffer))
                full = f"{path}.{name}" if path else name
                yield NamedTensor(full, buffer, True, name in module._non_persistent_buffers_set)


_Shape = dict[str, tuple[int, ...]]


def find_parts(optimizers: Sequence[Optimizer], scaler: torch.amp.GradScaler | None = None) -> TrainingParts:
    """The parts of the training that these optimizers drive."""
    modules, schedulers = remembered(Kind.MODULE, Kind.SCHEDULE)
    places, roots = places_of(optimizers), outermost(modules)
    models = covering(roots, places)
    shapes = [_shape_of(each) for each in models]
    strangers = [each for each in roots if first_place(each, places) == math.inf]
    return TrainingParts(
        optimizers=tuple(optimizers),
        models=tuple(models),
        schedulers=tuple(schedules_of(schedulers, optimizers)),
        scaler=scaler,
        averaged=tuple(each for each in strangers if _is_average(each, shapes)),
    )


def _is_average(model: Module, shapes: Sequence[_Shape]) -> bool:
    """Whether this is an averaged copy: torch's own kind, or a frozen twin such as EMA code keeps.

    A twin that could be trained is left alone: it may be the best model so far, which the script keeps for itself.
    """
    frozen = not any(each.requires_grad for each in Module.parameters(model))
    return (frozen or isinstance(model, AveragedModel)) and _shape_of(model) in shapes


def _shape_of(model: Module) -> _Shape:
    return {each.name: tuple(each.tensor.shape) for each in tensors_of_model(model) if not each.is_buffer}
