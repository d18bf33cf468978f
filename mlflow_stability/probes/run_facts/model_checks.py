"""Looks a model over for what is seldom meant: once, when its training has begun.

In: models, and the optimizers that were seen to train them. Out: events at INFO, at most one of each sort. Promised:
one walk over modules and parameters; no value is looked at, and nothing is told that the script does not say itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

from mlflow_stability.detectors.reported.setup import ModelLint
from mlflow_stability.probes.objects.module_names import plain_name
from mlflow_stability.probes.tensors.gradient_norm import parameters_of
from mlflow_stability.vocabulary.result.event import Event, Severity

_NORMS = ("LayerNorm", "GroupNorm", "RMSNorm")
_EPS = ("eps", "variance_epsilon", "epsilon")  # as torch, Llama and TensorFlow's heirs call it
_SCALES = ("scale", "scaling", "softmax_scale")
_HALF = (torch.float16, torch.bfloat16)
_NAMED = 3


@dataclass(frozen=True, slots=True)
class ModelCheckLimits:
    """From where on something is odd."""

    smallest_eps_in_half: float = 1e-6
    """The least epsilon of a normalisation whose weights are in half precision: a smaller one is lost beside 1."""
    smallest_eps: float = 1e-8
    """The least epsilon of any other: the gradient of a constant row is multiplied by its inverse root."""
    smallest_scale: float = 1e-4
    """The least factor on attention logits: with a smaller one all keys are attended to alike."""


def model_lint(
    models: Sequence[Module], optimizers: Sequence[Optimizer], step: int, limits: ModelCheckLimits | None = None
) -> list[Event]:
    """What is odd about these models."""
    limits = limits or ModelCheckLimits()
    named = [(name, each) for model in models for name, each in _named_parameters(model)]
    found = (
        _small_eps(models, limits),
        _small_scale(models, limits),
        _without_optimizer(named, optimizers),
        _tied(named),
        _frozen(named),
        _trained_twice(named, optimizers),
    )
    return [
        Event(step, ModelLint.kind, Severity.INFO, message, place, evidence, (remedy,) if remedy else ())
        for each in found
        if each is not None
        for message, place, evidence, remedy in (each,)
    ]


_Odd = tuple[str, str, dict[str, float], str]


def _small_eps(models: Sequence[Module], limits: ModelCheckLimits) -> _Odd | None:
    found = []
    for name, module in _modules(models):
        if type(module).__name__.endswith(_NORMS):
            eps = _number(module, _EPS)
            half = any(each is not None and each.dtype in _HALF for each in module._parameters.values())
            least = limits.smallest_eps_in_half if half else limits.smallest_eps
            if eps is not None and eps < least:
                found.append((name, eps, "half precision" if half else "single precision", least))
    if not found:
        return None
    name, eps, precision, least = min(found, key=lambda each: each[1])
    message = (
        f"{_count(found, 'normalisation')} in {precision} with a very small epsilon ({name}: {eps:g}, usually "
        f"at least {least:g}). Rows without variance get very large gradients."
    )
    return message, name, {"eps": eps, "modules": float(len(found))}, "Use an epsilon of 1e-5 or 1e-6."


def _small_scale(models: Sequence[Module], limits: ModelCheckLimits) -> _Odd | None:
    found = []
    for name, module in _modules(models):
        words = f"{name}.{type(module).__name__}".lower()
        scale = _number(module, _SCALES) if "attn" in words or "attention" in words else None
        if scale is not None and 0 <= scale < limits.smallest_scale:
            found.append((name, scale))
    if not found:
        return None
    name, scale = found[0]
    message = (
        f"{_count(found, 'attention module')} scaled by less than {limits.smallest_scale:g} ({name}: "
        f"{scale:g}). Attention weights are then nearly uniform over the keys."
    )
    return (
        message,
        name,
        {"scale": scale, "modules": float(len(found))},
        ("Scale attention logits by 1/sqrt(head dimension)."),
    )


def _without_optimizer(named: Sequence[tuple[str, Tensor]], optimizers: Sequence[Optimizer]) -> _Odd | None:
    trained = {id(parameter) for each in optimizers for parameter in parameters_of(each)}
    found = _once((name, each) for name, each in named if each.requires_grad and id(each) not in trained)
    if not found:
        return None
    with_gradient = sum(each.grad is not None for _, each in found)
    message = (
        f"{_count(found, 'parameter')} in no optimizer that has stepped, although requires_grad is True "
        f"({with_gradient} have a gradient): {_names(found)}."
    )
    evidence = {"parameters": float(len(found)), "values": _values(found), "with_gradient": float(with_gradient)}
    return message, _place(found), evidence, "Add them to an optimizer, or set requires_grad to False."


def _tied(named: Sequence[tuple[str, Tensor]]) -> _Odd | None:
    names: dict[int, list[str]] = {}
    for name, each in named:
        names.setdefault(id(each), []).append(name)
    tied = [each for each in names.values() if len(each) > 1]
    if not tied:
        return None
    said = "; ".join(" = ".join(each[:_NAMED]) for each in tied[:_NAMED])
    more = f" and {len(tied) - _NAMED} more" if len(tied) > _NAMED else ""
    return f"{_count(tied, 'parameter')} shared under several names: {said}{more}.", "", {"tied": float(len(tied))}, ""


def _frozen(named: Sequence[tuple[str, Tensor]]) -> _Odd | None:
    found = _once((name, each) for name, each in named if not each.requires_grad)
    if not found:
        return None
    values, total = _values(found), _values(_once(named))
    message = f"{_count(found, 'parameter')} frozen, {values / max(total, 1):.0%} of all values: {_names(found)}."
    return message, _place(found), {"frozen": float(len(found)), "values": values}, ""


def _trained_twice(named: Sequence[tuple[str, Tensor]], optimizers: Sequence[Optimizer]) -> _Odd | None:
    often = Counter(one for each in optimizers for one in {id(parameter) for parameter in parameters_of(each)})
    found = _once((name, each) for name, each in named if often[id(each)] > 1)
    if not found:
        return None
    message = f"{_count(found, 'parameter')} in more than one optimizer: {_names(found)}."
    return message, _place(found), {"parameters": float(len(found))}, "Add each parameter to one optimizer only."


def _modules(models: Sequence[Module]) -> Iterator[tuple[str, Module]]:
    for model in models:
        for name, module in Module.named_modules(model):
            yield plain_name(name) or type(module).__name__, module


def _named_parameters(model: Module) -> Iterator[tuple[str, Tensor]]:
    """With every name that a parameter has."""
    for name, each in Module.named_parameters(model, remove_duplicate=False):
        yield plain_name(name), each


def _number(module: Module, names: Sequence[str]) -> float | None:
    """A plain number that a module keeps under one of these names; tensors are not looked into."""
    values = (vars(module).get(name) for name in names)
    return next((float(each) for each in values if isinstance(each, int | float) and not isinstance(each, bool)), None)


def _once(named: Iterable[tuple[str, Tensor]]) -> list[tuple[str, Tensor]]:
    """Each parameter by its first name."""
    first: dict[int, tuple[str, Tensor]] = {}
    for name, each in named:
        first.setdefault(id(each), (name, each))
    return list(first.values())


def _values(named: Sequence[tuple[str, Tensor]]) -> float:
    return float(sum(each.numel() for _, each in named))


def _place(named: Sequence[tuple[str, Tensor]]) -> str:
    """The module of the first parameter."""
    return named[0][0].rpartition(".")[0]


def _names(named: Sequence[tuple[str, Tensor]]) -> str:
    said = ", ".join(name for name, _ in named[:_NAMED])
    return f"{said} and {len(named) - _NAMED} more" if len(named) > _NAMED else said


def _count(found: Sequence[object], noun: str) -> str:
    """`1 parameter is`, `5 parameters are`."""
    return f"{len(found)} {noun} is" if len(found) == 1 else f"{len(found)} {noun}s are"
