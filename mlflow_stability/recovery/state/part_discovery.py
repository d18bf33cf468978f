"""Finds what belongs to a training, from its optimizers alone.

In: the optimizers that are about to step, and the loss scaler of the capture. Out: the parts of the training.
Guarantees: one walk over Python's objects, nothing of the script is called; what is found too much would only cost
memory, so averaged copies are taken only where type, names and shapes leave no doubt.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch.nn import Module
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel

from mlflow_stability.probes.objects import Kind, covering, first_place, outermost, places_of, remembered, schedules_of
from mlflow_stability.recovery.state.tensor_names import tensors_of_model
from mlflow_stability.recovery.state.training_parts import TrainingParts

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
