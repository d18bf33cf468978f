"""The parts of one training: models, optimizers, schedulers, loss scaler, averaged copies.

In: the objects of a training. Out: the same objects, for the duration of one call; what splits its state over
processes, empty where nothing does. Guarantees: between calls they are held weakly, so that a script that drops its
model gets the memory back; other processes are not asked.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import Module
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from mlflow_stability.probes.objects import ZERO, living
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

    def __init__(self, parts: TrainingParts) -> None:
        self._needed = _weakly((*parts.optimizers, *parts.models))
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
        """Whether `alive` would give them: all that is asked at most steps."""
        return not [each for each in self._needed if each() is None]


def _weakly(objects: Sequence[Any]) -> tuple[weakref.ref[Any], ...]:
    return tuple(weakref.ref(each) for each in objects)


def _living(references: Sequence[weakref.ref[Any]]) -> tuple[Any, ...]:
    return tuple(each for reference in references if (each := reference()) is not None)


_SPLITTING = ("FullyShardedDataParallel", ZERO)
"""Kinds of modules and optimizers that split what they hold without saying so of their tensors."""


def stage_of_pipeline(parts: TrainingParts) -> str:
    """The kind of pipeline stage that these models are; their parameters' names may be those of other stages too."""
    stages = sys.modules.get("torch.distributed.pipelining.stage")
    if stages is None or not torch.distributed.is_initialized():
        return ""
    modules = {id(each) for model in parts.models for each in Module.modules(model)}
    (found,) = living(stages.PipelineStage.__base__)  # also stages that are made from a traced model
    return next((type(each).__name__ for each in found if id(vars(each).get("submod")) in modules), "")


def holds_shards(parts: TrainingParts) -> bool:
    """Whether all that is split over processes are sharded parameters, each of which knows its part of the whole."""
    modules = [each for model in parts.models for each in Module.modules(model)]
    if stage_of_pipeline(parts) or any(type(each).__name__ in _SPLITTING for each in (*parts.optimizers, *modules)):
        return False
    if any(is_of_one_rank(each) for model in parts.models for each in Module.parameters(model)):
        return False
    return any(local_part(each) is not each for model in parts.models for each in Module.parameters(model))


def any_shards() -> bool:
    """Whether an optimizer of this process trains parameters that are sharded."""
    (optimizers,) = living(Optimizer)
    parameters = (parameter for each in optimizers for group in each.param_groups for parameter in group["params"])
    return any(local_part(each) is not each for each in parameters)


def what_splits(parts: TrainingParts) -> str:
    """``FSDP``-like modules, sharded parameters, or optimizers that share their state out among processes."""
    if stage := stage_of_pipeline(parts):
        return stage
    for optimizer in parts.optimizers:
        if type(optimizer).__name__ in _SPLITTING:
            return type(optimizer).__name__
    for model in parts.models:
        for module in Module.modules(model):
            if type(module).__name__ in _SPLITTING:
                return type(module).__name__
        for name, parameter in Module.named_parameters(model):
            if is_of_one_rank(parameter) and world_size() > 1:
                return f"parameter {name} is another one on each rank"
            if local_part(parameter) is not parameter:
                return f"parameter {name} is a {type(parameter).__name__}"
    return ""
