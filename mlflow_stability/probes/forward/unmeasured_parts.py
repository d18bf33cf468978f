"""Says what of a training cannot be measured, why, and what to do about it.

In: the models that were found, and the optimizers. Out: events at INFO, at most one for each reason. Promised: nothing
is measured, and no value is looked at; where all is seen, there is no event.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence

from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

from mlflow_stability.detectors.reported.setup import NotMeasured
from mlflow_stability.probes.objects.model_discovery import parameters_in
from mlflow_stability.probes.tensors.gradient_norm import is_split, parameters_of
from mlflow_stability.vocabulary.result.event import Event, Severity


def unseen_parts(models: Sequence[Module], optimizers: Sequence[Optimizer], step: int) -> list[Event]:
    """What is not seen of this training."""
    trained = [each for optimizer in optimizers for each in parameters_of(optimizer) if each.requires_grad]
    return [event for event in (_hidden(models, trained, step), _split(trained, step)) if event is not None]


def not_looked_into(model: str, why: str, step: int) -> Event:
    """That a model is not looked into, and why."""
    return Event(
        step,
        NotMeasured.kind,
        Severity.INFO,
        f"The forward pass of {model} is not looked into, so nothing is told of activations, attention and "
        f"representations: {why}.",
        remedies=("Nothing has to be done for it: losses, gradients, weights and updates are recorded as ever.",),
    )


def _hidden(models: Sequence[Module], trained: Sequence[Tensor], step: int) -> Event | None:
    """Frozen objects are not among those that Python lists: https://docs.python.org/3/library/gc.html#gc.freeze"""
    if not gc.get_freeze_count():
        return None
    owned = {id(each) for model in models for each in parameters_in(model)}
    lost = [each for each in trained if id(each) not in owned]
    if not lost:
        return None
    return Event(
        step,
        NotMeasured.kind,
        Severity.INFO,
        f"The model that owns {len(lost)} of {len(trained)} trained parameters was not found, so nothing is told of "
        "its layers, its throughput and itself: what `gc.freeze()` has frozen before the first step cannot be looked "
        "for.",
        evidence={"parameters": float(len(lost))},
        remedies=("Call `gc.freeze()` after the first step of the training, and not before.",),
    )


def _split(trained: Sequence[Tensor], step: int) -> Event | None:
    split = [each for each in trained if is_split(each)]
    if not split:
        return None
    return Event(
        step,
        NotMeasured.kind,
        Severity.INFO,
        f"{len(split)} of {len(trained)} trained parameters are split over processes, so there is no gradient norm and "
        "nothing is told of their layers: a part of a norm is not the norm. All else is recorded.",
        evidence={"parameters": float(len(split))},
        remedies=("Log the norm that your own clipping gives with `mlflow.log_metric`.",),
    )
