"""Report what of a training cannot be measured, why, and what to do about it: findings at INFO."""

from __future__ import annotations

import gc
from collections.abc import Sequence

from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

from mlflow_stability.kinds.reported.setup import NotMeasuredFacts, Unmeasured
from mlflow_stability.probes.objects.model_discovery import parameters_in
from mlflow_stability.probes.tensors.gradient_norm import is_split, parameters_of, world_size
from mlflow_stability.vocabulary.result import Action, Finding, Remedy, Severity


def unseen_parts(models: Sequence[Module], optimizers: Sequence[Optimizer], step: int) -> list[Finding]:
    """Return findings about parameters that cannot be measured, at most one for each reason."""
    trained = [
        parameter for optimizer in optimizers for parameter in parameters_of(optimizer) if parameter.requires_grad
    ]
    findings = (_hidden(models, trained, step), _split(trained, step))
    return [finding for finding in findings if finding is not None]


def not_measured_inside(model: str, why: str, step: int) -> Finding:
    """Return the finding that the inside of a model is not measured, and why."""
    facts = NotMeasuredFacts(Unmeasured.INSIDE, model, why)
    remedies = (Remedy(Action.NO_ACTION_FOR_UNMEASURED),)
    return Finding.at(facts, step, Severity.INFO, remedies=remedies)


def _hidden(models: Sequence[Module], trained: Sequence[Tensor], step: int) -> Finding | None:
    """Frozen objects are not among those that Python lists: https://docs.python.org/3/library/gc.html#gc.freeze"""
    owned = {id(parameter) for model in models for parameter in parameters_in(model)}
    hidden = [parameter for parameter in trained if id(parameter) not in owned]
    # Counting walks over all frozen objects: 0.1 s for a million.
    if not hidden or not gc.get_freeze_count():
        return None
    facts = NotMeasuredFacts(Unmeasured.HIDDEN_MODEL, parameters=len(hidden), of_parameters=len(trained))
    remedies = (Remedy(Action.CALL_GC_FREEZE_LATER),)
    return Finding.at(facts, step, Severity.INFO, remedies=remedies)


def _split(trained: Sequence[Tensor], step: int) -> Finding | None:
    split = [parameter for parameter in trained if is_split(parameter)]
    if not split:
        return None
    facts = NotMeasuredFacts(
        Unmeasured.SPLIT_PARAMETERS,
        parameters=len(split),
        of_parameters=len(trained),
        one_process=world_size() == 1,
    )
    remedies = (Remedy(Action.NO_ACTION_FOR_SHARDS),)
    return Finding.at(facts, step, Severity.INFO, remedies=remedies)
