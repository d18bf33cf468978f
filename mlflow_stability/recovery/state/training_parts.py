"""Parts of one training: models, optimizers, schedulers, loss scaler, averaged copies, and their tensors by name.

Guarantees: between calls parts are held weakly, so that a script that drops its model gets the memory back. One walk
over Python's objects finds the parts, and calls nothing of the script; averaged copies are taken only where type, names
and shapes leave no doubt. Names hold in the next process: a tensor has one name however often it is tied, independent
of wrappers (DDP, ``torch.compile``, FSDP, activation checkpoints) and of the order of parameter groups.
"""

from __future__ import annotations

import dataclasses
import math
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
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

from mlflow_stability.probes.gradient_norm import is_of_one_rank, local_part, world_size
from mlflow_stability.probes.model_discovery import (
    ZERO,
    Kind,
    covering,
    first_place,
    living,
    outermost,
    parameters_in,
    places_of,
    plain_name,
    remembered,
    schedules_of,
)


@dataclass(frozen=True, slots=True)
class TrainingParts:
    optimizers: tuple[Optimizer, ...]
    models: tuple[Module, ...] = ()  # outermost modules that own the optimizers' parameters, in the order of these
    schedulers: tuple[LRScheduler, ...] = ()
    scaler: torch.amp.GradScaler | None = None
    averaged: tuple[Module, ...] = ()  # averaged copies of the models, restored with them
    twins: tuple[Module, ...] = ()
    """Copies that could be trained, but no optimizer trains them: target networks, averages, the best model so far."""


class WeakTrainingParts:
    def __init__(self, parts: TrainingParts, on_end: Callable[[Any], None] | None = None) -> None:
        """`on_end` is called when a model or an optimizer is gone."""
        self._needed = _weakly((*parts.optimizers, *parts.models), on_end)
        self._optimizers = len(parts.optimizers)  # how many of them are optimizers; models follow
        self._schedulers = _weakly(parts.schedulers)
        self._scaler = None if parts.scaler is None else weakref.ref(parts.scaler)
        self._averaged = _weakly(parts.averaged)
        self._twins = _weakly(parts.twins)

    def alive(self) -> TrainingParts | None:
        """Return the parts; None once a model or an optimizer is gone."""
        needed = _living(self._needed)
        if len(needed) < len(self._needed):
            return None
        return TrainingParts(
            optimizers=needed[: self._optimizers],
            models=needed[self._optimizers :],
            schedulers=_living(self._schedulers),
            scaler=None if self._scaler is None else self._scaler(),
            averaged=_living(self._averaged),
            twins=_living(self._twins),
        )

    def are_there(self) -> bool:
        return not [reference for reference in self._needed if reference() is None]


def _weakly(objects: Sequence[Any], on_end: Callable[[Any], None] | None = None) -> tuple[weakref.ref[Any], ...]:
    return tuple(weakref.ref(target, on_end) for target in objects)


def _living(references: Sequence[weakref.ref[Any]]) -> tuple[Any, ...]:
    return tuple(target for reference in references if (target := reference()) is not None)


_SPLITTING = ("FullyShardedDataParallel", ZERO)  # modules and optimizers that split their state without marking tensors


class SplitBy(Enum):
    """What splits a state over ranks; the value is how it is described."""

    STAGE = "pipeline stage {name}"
    OPTIMIZER = "optimizer {name}"
    MODULE = "module {name}"
    RANK = "parameter {name} is another one on each rank"
    SHARDS = "parameter {name} is a {kind}"


@dataclass(frozen=True, slots=True)
class StateSplit:
    by: SplitBy
    name: str  # type of the stage, optimizer or module, or name of the parameter
    kind: str = ""  # type of a sharded parameter

    def __str__(self) -> str:
        return self.by.value.format(name=self.name, kind=self.kind)


def _stage_of_pipeline(parts: TrainingParts) -> StateSplit | None:
    """Return the pipeline stage of these models; parameters of other stages may have the same names."""
    stages = sys.modules.get("torch.distributed.pipelining.stage")
    if stages is None or not torch.distributed.is_initialized():
        return None
    modules = {id(module) for model in parts.models for module in Module.modules(model)}
    (stage_objects,) = living(stages.PipelineStage.__base__)  # also stages that are made from a traced model
    stage = next((candidate for candidate in stage_objects if id(vars(candidate).get("submod")) in modules), None)
    return None if stage is None else StateSplit(SplitBy.STAGE, type(stage).__name__)


def any_shards() -> bool:
    """Whether an optimizer of this process trains sharded parameters."""
    (optimizers,) = living(Optimizer)
    parameters = (
        parameter for optimizer in optimizers for group in optimizer.param_groups for parameter in group["params"]
    )
    return any(local_part(parameter) is not parameter for parameter in parameters)


def what_splits(parts: TrainingParts) -> StateSplit | None:
    """Return what splits the state over ranks, if anything; of several reasons, shards come last."""
    if (stage := _stage_of_pipeline(parts)) is not None:
        return stage
    for optimizer in parts.optimizers:
        if type(optimizer).__name__ in _SPLITTING:
            return StateSplit(SplitBy.OPTIMIZER, type(optimizer).__name__)
    for module in (module for model in parts.models for module in Module.modules(model)):
        if type(module).__name__ in _SPLITTING:
            return StateSplit(SplitBy.MODULE, type(module).__name__)
    parameters = [named for model in parts.models for named in Module.named_parameters(model)]
    of_one_rank = next((name for name, parameter in parameters if is_of_one_rank(parameter)), None)
    if of_one_rank is not None and world_size() > 1:
        return StateSplit(SplitBy.RANK, of_one_rank)
    for name, parameter in parameters:
        if local_part(parameter) is not parameter:
            return StateSplit(SplitBy.SHARDS, name, type(parameter).__name__)
    return None


@dataclass(frozen=True, slots=True)
class NamedTensor:
    name: str
    tensor: Tensor
    is_buffer: bool = False
    is_cache: bool = False  # a non-persistent buffer: masks, tables of positions
    is_average: bool = False  # part of an averaged copy

    @property
    def is_trained(self) -> bool:
        return not self.is_buffer and self.tensor.requires_grad


def named_tensors(parts: TrainingParts) -> list[NamedTensor]:
    """Return every parameter and buffer of the training, each once."""
    by_id: dict[int, NamedTensor] = {}
    for averaged, models in ((False, parts.models), (True, parts.averaged)):
        for number, model in enumerate(models):
            before = f"average_{number}/" if averaged else "" if len(models) == 1 else f"model_{number}/"
            for tensor in tensors_of_model(model):
                named = dataclasses.replace(tensor, name=before + tensor.name, is_average=averaged)
                by_id.setdefault(id(tensor.tensor), named)
    for number, optimizer in enumerate(parts.optimizers):
        parameters = (parameter for group in optimizer.param_groups for parameter in group["params"])
        for position, parameter in enumerate(parameters):
            name = f"optimizer_{number}/parameter_{position}"
            by_id.setdefault(id(parameter), NamedTensor(name, parameter))
    return list(by_id.values())


def tensors_of_model(model: Module) -> list[NamedTensor]:
    """Return the tensors of one model under plain names; under their own where two would be alike."""
    raw = [named for named in _raw_tensors(model) if not is_lazy(named.tensor)]
    plain = [plain_name(named.name) for named in raw]
    if len(set(plain)) < len(plain):
        return raw
    return [dataclasses.replace(named, name=name) for name, named in zip(plain, raw, strict=True)]


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


def find_parts(
    optimizers: Sequence[Optimizer], scaler: torch.amp.GradScaler | None = None, lasting: Sequence[Module] = ()
) -> TrainingParts:
    """Find the parts; of two modules with the same trained parameters, models are those that are `lasting`."""
    modules, schedulers, all_optimizers = remembered(Kind.MODULE, Kind.SCHEDULE, Kind.OPTIMIZER)
    places, roots = places_of(optimizers), outermost(modules)
    models = covering(roots, places)
    within = covering(outermost(lasting), places)
    if within and _trained_in(models, places) == _trained_in(within, places):
        models = within
    shapes = [_shape_of(model) for model in models]
    strangers = [root for root in roots if first_place(root, places) == math.inf]
    averaged = [model for model in strangers if _is_average(model, shapes)]
    restored = set(map(id, averaged))
    twins = [model for model in strangers if id(model) not in restored and _shape_of(model) in shapes]
    elsewhere = places_of(all_optimizers) if twins else {}
    twins = [model for model in twins if first_place(model, elsewhere) == math.inf]
    return TrainingParts(
        optimizers=tuple(optimizers),
        models=tuple(models),
        schedulers=tuple(schedules_of(schedulers, optimizers)),
        scaler=scaler,
        averaged=tuple(averaged),
        twins=tuple(twins),
    )


def _trained_in(models: Sequence[Module], places: Mapping[int, int]) -> set[int]:
    return {id(parameter) for model in models for parameter in parameters_in(model)} & places.keys()


def _is_average(model: Module, shapes: Sequence[_Shape]) -> bool:
    """Whether this is an averaged copy: an `AveragedModel`, or a frozen twin as in EMA code.

    A twin that could be trained may be the best model so far, which the script keeps for itself.
    """
    frozen = not any(parameter.requires_grad for parameter in Module.parameters(model))
    return (frozen or isinstance(model, AveragedModel)) and _shape_of(model) in shapes


def _shape_of(model: Module) -> _Shape:
    return {named.name: tuple(named.tensor.shape) for named in tensors_of_model(model) if not named.is_buffer}
