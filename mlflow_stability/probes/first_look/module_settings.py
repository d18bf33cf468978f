"""Finds settings of modules and optimizers that are nearly always a mix-up; no value is read."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from torch import Tensor, nn
from torch.nn import Module
from torch.optim import Optimizer

from mlflow_stability.kinds.first_look.module_settings import (
    AccumulationFacts,
    AccumulationSum,
    OptimizedTwice,
    OptimizedTwiceFacts,
    StrongDropout,
    StrongDropoutFacts,
)
from mlflow_stability.probes.first_look.loss_graph import LOSSES, MEAN, node_name
from mlflow_stability.probes.objects.module_names import plain_name
from mlflow_stability.probes.tensors.gradient_norm import parameters_of
from mlflow_stability.vocabulary.result import Finding, Severity

DROPPED, SHARED, ACCUMULATION = StrongDropout().least, OptimizedTwice().share, AccumulationSum()
DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
MEANS = frozenset((*LOSSES, "MseLoss", "SmoothL1Loss", "HuberLoss"))
"""Loss functions whose node says how they reduce."""


def strong_dropout(models: Sequence[Module], step: int) -> Finding | None:
    """The dropout in training mode that drops most, if that is nearly all."""
    named = (pair for model in models for pair in Module.named_modules(model))
    found = [
        StrongDropoutFacts(plain_name(name) or type(module).__name__, float(module.p))
        for name, module in named
        if isinstance(module, DROPOUTS) and module.training and DROPPED <= module.p < 1
    ]
    if not found:
        return None
    facts = max(found, key=lambda facts: facts.probability)
    return Finding.at(facts, step, Severity.WARNING, place=facts.module, remedies=StrongDropout.remedies)


class _Stepped(NamedTuple):
    """An optimizer that took a step, and the gradients that it took it with."""

    optimizer: weakref.ref[Optimizer]
    gradients: dict[int, tuple[weakref.ref[Tensor], int]]
    """By parameter: the gradient, and how often it had been changed."""

    def used(self, parameter: Tensor) -> bool:
        """Whether it took its step with the gradient that this parameter has now."""
        gradient, (known, version) = parameter.grad, self.gradients.get(id(parameter), _NO_GRADIENT)
        return gradient is not None and known() is gradient and version == gradient._version


_NO_GRADIENT: tuple[Callable[[], Tensor | None], int] = (lambda: None, 0)


class SharedParameters:
    """Which optimizers took a step with the same gradients of the same parameters."""

    def __init__(self) -> None:
        self._step = 0
        self._stepped: list[_Stepped] = []
        """Optimizers of the step in progress."""
        self._before = 0
        """The step at which two of them had shared parameters before."""

    def look(self, optimizer: Optimizer, step: int) -> Finding | None:
        """Whether it shares most parameters with another one of this step, as at the look before."""
        if step != self._step:
            self._step, self._stepped = step, []
        others = [each for each in self._stepped if each.optimizer() not in (None, optimizer)]
        gradients = {id(held): held.grad for held in parameters_of(optimizer)}
        held = {key: (weakref.ref(grad), grad._version) for key, grad in gradients.items() if grad is not None}
        self._stepped.append(_Stepped(weakref.ref(optimizer), held))
        for other in others:
            facts = _shared(optimizer, other)
            if facts is not None:
                before, self._before = self._before, step
                if 0 < before < step:
                    return Finding.at(facts, step, Severity.WARNING, remedies=OptimizedTwice.remedies)
        return None


def _shared(optimizer: Optimizer, stepped: _Stepped) -> OptimizedTwiceFacts | None:
    other = stepped.optimizer()
    if other is None or optimizer.param_groups is other.param_groups:
        return None
    if any(held is optimizer or held is other for held in (*vars(optimizer).values(), *vars(other).values())):
        return None  # one is made of the other
    mine, theirs = parameters_of(optimizer), parameters_of(other)
    both = [tensor for tensor in mine if stepped.used(tensor)]
    share = _values(both) / max(1, min(_values(mine), _values(theirs)))
    return OptimizedTwiceFacts(len(both), share) if share >= SHARED else None


def _values(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() for tensor in tensors)


class Accumulation:
    """Backward passes of a step that begin at a mean of the same loss function."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._steps = 0
        """Number of steps in a row with as many of them as are a finding."""
        self._step = 0

    def note(self, loss: Tensor, step: int) -> Finding | None:
        """Count one loss; a finding when steps enough were seen."""
        finding = None
        if step != self._step:
            finding = self._end_step(step)
            self._step, self._names = step, []
        node = loss.grad_fn
        name = node_name(node)
        is_mean = name in MEANS and getattr(node, "_saved_reduction", None) == MEAN
        self._names.append(name if is_mean else "")
        return finding

    def _end_step(self, step: int) -> Finding | None:
        is_sum = len(self._names) >= ACCUMULATION.passes and len(set(self._names)) == 1 and self._names[0]
        self._steps = self._steps + 1 if is_sum else 0
        if self._steps != ACCUMULATION.steps:
            return None
        facts = AccumulationFacts(len(self._names))
        return Finding.at(facts, step - 1, Severity.INFO, remedies=AccumulationSum.remedies)
