"""Finds a weight decay that is too strong, from the settings of an optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.optim import SGD, Adam, Optimizer

from mlflow_stability.kinds.optimizer.weight_decay_strong import OF_L2, StrongDecayFacts, StrongWeightDecay
from mlflow_stability.vocabulary.result import Finding, Severity

LIMITS = StrongWeightDecay()
_DECOUPLED = ("Lion", "Muon")


def strong_decay(optimizer: Optimizer, step: int) -> Finding | None:
    """The parameter group whose weights shrink most, if that is too much."""
    found = []
    for group in optimizer.param_groups:
        decay, rate = group.get("weight_decay"), group.get("lr")
        if not isinstance(decay, float | int) or not isinstance(rate, float | int):
            continue
        if _adds_to_gradient(optimizer, group) and decay >= LIMITS.strong_l2:
            found.append(StrongDecayFacts(float(decay), float(rate), is_l2=True))
        if decay * rate < LIMITS.strong:
            continue
        if _is_decoupled(optimizer, bool(group.get("decoupled_weight_decay"))):
            found.append(StrongDecayFacts(float(decay), float(rate)))
    if not found:
        return None
    facts = max(found, key=lambda facts: facts.shrinks_by)
    remedies = OF_L2 if facts.is_l2 else StrongWeightDecay.remedies
    return Finding.at(facts, step, Severity.WARNING, remedies=remedies)


def _adds_to_gradient(optimizer: Optimizer, group: Mapping[str, Any]) -> bool:
    return type(optimizer) is Adam and not group.get("decoupled_weight_decay")


def _is_decoupled(optimizer: Optimizer, is_set: bool) -> bool:
    """Whether a step multiplies weights by 1 - rate * decay: Adam divides a decay in the gradient by its size."""
    name = type(optimizer).__name__
    return is_set or type(optimizer) is SGD or name.endswith("AdamW") or name.startswith(_DECOUPLED)
