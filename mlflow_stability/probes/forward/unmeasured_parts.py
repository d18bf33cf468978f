"""Says what of a training cannot be measured, why, and what to do about it.

In: the models that were found, and the optimizers. Out: events at INFO, at most one for each reason. Guarantees:
nothing is measured, and no value is looked at; where all is seen, there is no event.
"""

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
    """What is not seen of this training."""
    trained = [each for optimizer in optimizers for each in parameters_of(optimizer) if each.requires_grad]
    return [event for event in (_hidden(models, trained, step), _split(trained, step)) if event is not None]


def not_looked_into(model: str, why: str, step: int) -> Finding:
    """That a model is not looked into, and why."""
    facts = NotMeasuredFacts(Unmeasured.INSIDE, model, why)
    remedies = (Remedy(Action.NO_ACTION_FOR_UNMEASURED),)
    return Finding.at(facts, step, Severity.INFO, remedies=remedies)


def _hidden(models: Sequence[Module], trained: Sequence[Tensor], step: int) -> Finding | None:
    """Frozen objects are not among those that Python lists: https://docs.python.org/3/library/gc.html#gc.freeze"""
    if not gc.get_freeze_count():
        return None
    owned = {id(each) for model in models for each in parameters_in(model)}
    lost = [each for each in trained if id(each) not in owned]
    if not lost:
        return None
    facts = NotMeasuredFacts(Unmeasured.HIDDEN_MODEL, parameters=len(lost), of_parameters=len(trained))
    remedies = (Remedy(Action.CALL_GC_FREEZE_LATER),)
    return Finding.at(facts, step, Severity.INFO, remedies=remedies)


def _split(trained: Sequence[Tensor], step: int) -> Finding | None:
    split = [each for each in trained if is_split(each)]
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
