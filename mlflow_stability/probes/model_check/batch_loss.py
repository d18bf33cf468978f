"""The loss of one batch, as a training computes it, and what it is for guessing.

In: the output of a model, its batch, and the loss function if one was given. Out: the loss, with the level of chance.
Guarantees: without a loss function, only what is beyond doubt is computed: the output's own loss, cross-entropy for
whole numbers as targets, the mean squared error for targets of the output's shape.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

LossFunction = Callable[..., Tensor]


@dataclass(frozen=True, slots=True)
class Batch:
    """What a model is called with, and what its output is held against."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    target: Any = None
    """None: there is none."""


@dataclass(frozen=True, slots=True)
class BatchLoss:
    """The loss, and what it is for guessing."""

    loss: Tensor
    chance: float | Tensor | None = None
    level: str = ""
    """What guessing is: ``chance for 10 classes``."""
    classes: int = 0


def batch_of(given: Any) -> Batch:
    """Keyword arguments, a pair of inputs and targets, or inputs alone."""
    if isinstance(given, Mapping):
        return Batch((), dict(given), given)
    if isinstance(given, tuple | list) and len(given) == 2:
        inputs, target = given
        if isinstance(inputs, Mapping):
            return Batch((), dict(inputs), target)
        return Batch(tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,), {}, target)
    return Batch((given,), {})


def loss_of(output: Any, batch: Batch, function: LossFunction | None) -> BatchLoss | None:
    """The loss of this output; None where nobody says what it is."""
    if function is not None:
        loss = function(output, batch.target) if batch.target is not None else function(output)
        return _with_chance(loss, output, batch.target, function)
    own = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if isinstance(own, Tensor):
        scores = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
        labels = batch.kwargs.get("labels")
        classes = scores.shape[-1] if isinstance(scores, Tensor) and scores.dim() > 1 else 0
        return _of_classes(own, classes) if _counts(labels) and classes > 1 else BatchLoss(own)
    if not isinstance(output, Tensor):
        return None
    target = batch.target
    if isinstance(target, Tensor) and _counts(target) and output.is_floating_point():
        if output.dim() >= 2 and output.shape[:-1] == target.shape:
            loss = functional.cross_entropy(output.flatten(0, -2), target.flatten().long())
            return _of_classes(loss, output.shape[-1])
        if output.dim() >= 2 and (output.shape[0], *output.shape[2:]) == tuple(target.shape):
            return _of_classes(functional.cross_entropy(output, target.long()), output.shape[1])
        return None
    if isinstance(target, Tensor) and target.is_floating_point() and target.shape == output.shape:
        return _of_numbers(functional.mse_loss(output, target), target)
    return BatchLoss(output) if output.numel() == 1 and output.requires_grad else None


def _with_chance(loss: Any, output: Any, target: Any, function: LossFunction) -> BatchLoss | None:
    if not isinstance(loss, Tensor):
        return None
    if loss.numel() != 1:
        loss = loss.mean()
    if not isinstance(target, Tensor) or not isinstance(output, Tensor):
        return BatchLoss(loss)
    mean = getattr(function, "reduction", "mean") == "mean"
    if mean and (isinstance(function, nn.CrossEntropyLoss) or function is functional.cross_entropy):
        return _of_classes(loss, output.shape[1] if output.dim() > 1 else output.shape[0])
    if mean and (isinstance(function, nn.MSELoss) or function is functional.mse_loss):
        return _of_numbers(loss, target)
    if mean and isinstance(function, nn.BCEWithLogitsLoss | nn.BCELoss):
        return BatchLoss(loss, math.log(2), "chance for yes or no", 2)
    return BatchLoss(loss)


def _of_classes(loss: Tensor, classes: int) -> BatchLoss:
    return BatchLoss(loss, math.log(classes), f"chance for {classes:,} classes", classes)


def _of_numbers(loss: Tensor, target: Tensor) -> BatchLoss:
    if target.numel() < 2:
        return BatchLoss(loss)
    return BatchLoss(loss, target.detach().float().var(correction=0), "predicting the mean of the targets")


def _counts(target: Any) -> bool:
    """Whether targets are whole numbers: classes."""
    return isinstance(target, Tensor) and not target.is_floating_point() and target.dtype is not torch.bool
