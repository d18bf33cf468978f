"""Checks the settings of a model and its optimizers: what is seldom intended.

In: models, and the optimizers that train them. Out: findings, at most one of each check; while a training runs, events
at INFO. Guarantees: one walk over modules and parameters; no value is read, and nothing is said that the script does
not say itself.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

from mlflow_stability.kinds.reported.setup import LintFacts
from mlflow_stability.probes.objects.module_names import plain_name
from mlflow_stability.probes.tensors.gradient_norm import parameters_of
from mlflow_stability.vocabulary.result import Action, Finding, ModelFinding, Remedy, Severity

_NORMS = ("LayerNorm", "GroupNorm", "RMSNorm")
_EPS = ("eps", "variance_epsilon", "epsilon")  # as torch, Llama and TensorFlow's heirs call it
_SCALES = ("scale", "scaling", "softmax_scale")
_HALF = (torch.float16, torch.bfloat16)
_ADAMS = re.compile(r"adam|lamb", re.IGNORECASE)
"""Optimizers whose two betas average gradients and their squares; others call other numbers so, as NovoGrad does."""
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
    models: Sequence[Module],
    optimizers: Sequence[Optimizer],
    step: int,
    limits: ModelCheckLimits | None = None,
    trained: Container[int] = (),
) -> list[Finding]:
    """The findings as events of a training, asked for when gradients are complete.

    All are at INFO: the optimizers of later steps are not known yet. `trained`: parameters that were trained before, by
    identity; they are not frozen.
    """
    return [
        lint_event(each.check, each.message, step, place=each.place, numbers=each.evidence, remedies=each.remedies)
        for each in settings_found(models, optimizers, limits, trained)
    ]


def lint_event(
    check: str, text: str, step: int, *, place: str, numbers: Mapping[str, float], remedies: tuple[Remedy, ...]
) -> Finding:
    """One finding as an event of a training."""
    facts = LintFacts(check, text, tuple(numbers.items()))
    return Finding.at(facts, step, Severity.INFO, place=place, remedies=remedies)


def settings_found(
    models: Sequence[Module],
    optimizers: Sequence[Optimizer] | None,
    limits: ModelCheckLimits | None = None,
    trained_before: Container[int] | None = None,
) -> list[ModelFinding]:
    """What is seldom intended about these models; without optimizers, nothing is said of what they train.

    `trained_before`: given while a training runs and gradients are complete; parameters without one take no part in
    the loss, as those of an averaged copy or of a target network.
    """
    limits = limits or ModelCheckLimits()
    named = [(name, each) for model in models for name, each in _named_parameters(model)]
    missing = twice = None
    if optimizers is not None:
        beside = set() if trained_before is None else _beside(models)
        missing = _without_optimizer([each for each in named if id(each[1]) not in beside], optimizers)
        twice = _trained_twice(named, optimizers)
    frozen = named if trained_before is None else [each for each in named if id(each[1]) not in trained_before]
    swapped = _betas_swapped(optimizers or ())
    found = (
        *(_small_eps(models, limits), _small_scale(models, limits)),
        *(missing, _tied(named), _frozen(frozen, named), twice, swapped),
    )
    return [each for each in found if each is not None]


def _small_eps(models: Sequence[Module], limits: ModelCheckLimits) -> ModelFinding | None:
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
        f"{count_of(found, 'normalisation')} in {precision} with a very small epsilon ({name}: {eps:g}, usually "
        f"at least {least:g}). Rows without variance get very large gradients."
    )
    evidence = {"eps": eps, "modules": float(len(found))}
    remedy = Remedy(Action.SET_EPS_OF_NORM)
    # BERT was published with 1e-12 in single precision, and trains.
    severity = Severity.WARNING if precision.startswith("half") else Severity.INFO
    return ModelFinding("small_eps", severity, message, name, evidence, (remedy,))


def _small_scale(models: Sequence[Module], limits: ModelCheckLimits) -> ModelFinding | None:
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
        f"{count_of(found, 'attention module')} scaled by less than {limits.smallest_scale:g} ({name}: "
        f"{scale:g}). Attention weights are then nearly uniform over the keys."
    )
    evidence = {"scale": scale, "modules": float(len(found))}
    remedy = Remedy(Action.SCALE_ATTENTION_LOGITS)
    return ModelFinding("small_scale", Severity.WARNING, message, name, evidence, (remedy,))


def _without_optimizer(named: Sequence[tuple[str, Tensor]], optimizers: Sequence[Optimizer]) -> ModelFinding | None:
    trained = {id(parameter) for each in optimizers for parameter in parameters_of(each)}
    found = first_names((name, each) for name, each in named if each.requires_grad and id(each) not in trained)
    if not found:
        return None
    with_gradient = sum(each.grad is not None for _, each in found)
    having = f", and {with_gradient} have a gradient" if with_gradient else ""
    message = (
        f"{count_of(found, 'parameter')} in no optimizer, although requires_grad is True{having}: {names_of(found)}."
    )
    evidence = {"parameters": float(len(found)), "values": values_in(found), "with_gradient": float(with_gradient)}
    remedy = Remedy(Action.ADD_TO_OPTIMIZER)
    return ModelFinding("not_in_optimizer", Severity.WARNING, message, place_of(found), evidence, (remedy,))


def _tied(named: Sequence[tuple[str, Tensor]]) -> ModelFinding | None:
    names: dict[int, list[str]] = {}
    for name, each in named:
        names.setdefault(id(each), []).append(name)
    tied = [each for each in names.values() if len(each) > 1]
    if not tied:
        return None
    said = "; ".join(" = ".join(each[:_NAMED]) for each in tied[:_NAMED])
    more = f" and {len(tied) - _NAMED} more" if len(tied) > _NAMED else ""
    message = f"{count_of(tied, 'parameter')} shared under several names: {said}{more}."
    return ModelFinding("tied", Severity.INFO, message, "", {"tied": float(len(tied))})


def _beside(models: Sequence[Module]) -> set[int]:
    """The parameters that have no gradient, or are in a module in evaluation mode beside ones that are trained."""
    found: set[int] = set()
    for model in models:
        for module in Module.modules(model):
            evaluates = model.training and not module.training
            own = [each for each in module._parameters.values() if each is not None]
            found.update(id(each) for each in own if evaluates or each.grad is None)
    return found


def _frozen(candidates: Sequence[tuple[str, Tensor]], named: Sequence[tuple[str, Tensor]]) -> ModelFinding | None:
    found = first_names((name, each) for name, each in candidates if not each.requires_grad)
    if not found:
        return None
    values, total = values_in(found), values_in(first_names(named))
    message = f"{count_of(found, 'parameter')} frozen, {values / max(total, 1):.0%} of all values: {names_of(found)}."
    return ModelFinding(
        "frozen", Severity.INFO, message, place_of(found), {"frozen": float(len(found)), "values": values}
    )


def _trained_twice(named: Sequence[tuple[str, Tensor]], optimizers: Sequence[Optimizer]) -> ModelFinding | None:
    often = Counter(one for each in optimizers for one in {id(parameter) for parameter in parameters_of(each)})
    found = first_names((name, each) for name, each in named if often[id(each)] > 1)
    if not found:
        return None
    message = f"{count_of(found, 'parameter')} in more than one optimizer: {names_of(found)}."
    remedy = Remedy(Action.ADD_TO_ONE_OPTIMIZER)
    evidence = {"parameters": float(len(found))}
    return ModelFinding("in_two_optimizers", Severity.WARNING, message, place_of(found), evidence, (remedy,))


def _betas_swapped(optimizers: Sequence[Optimizer]) -> ModelFinding | None:
    """Adam that averages gradients over more steps than their squares, so that its steps are not bounded."""
    for each in optimizers:
        for group in each.param_groups if _ADAMS.search(type(each).__name__) else ():
            betas = group.get("betas")
            if not isinstance(betas, list | tuple) or len(betas) != 2:
                continue
            first, second = betas
            if not all(isinstance(one, float | int) for one in betas) or first <= second:
                continue
            message = (
                f"{type(each).__name__} with betas=({first:g}, {second:g}): the first is above the second (usually 0.9 "
                "and 0.999). One large gradient then moves the weights without a bound for many steps."
            )
            evidence = {"beta1": float(first), "beta2": float(second)}
            remedy = Remedy(Action.SET_OR_SWAP_BETAS, target=(float(second), float(first)))
            return ModelFinding("betas_swapped", Severity.WARNING, message, "", evidence, (remedy,))
    return None


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


def first_names(named: Iterable[tuple[str, Tensor]]) -> list[tuple[str, Tensor]]:
    """Each parameter by its first name."""
    first: dict[int, tuple[str, Tensor]] = {}
    for name, each in named:
        first.setdefault(id(each), (name, each))
    return list(first.values())


def values_in(named: Sequence[tuple[str, Tensor]]) -> float:
    """How many values they have together."""
    return float(sum(each.numel() for _, each in named))


def place_of(named: Sequence[tuple[str, Tensor]]) -> str:
    """The module of the first parameter."""
    return named[0][0].rpartition(".")[0]


def names_of(named: Sequence[tuple[str, Tensor]]) -> str:
    """The first few."""
    said = ", ".join(name for name, _ in named[:_NAMED])
    return f"{said} and {len(named) - _NAMED} more" if len(named) > _NAMED else said


def count_of(found: Collection[object], noun: str) -> str:
    """`1 parameter is`, `5 parameters are`."""
    return f"{len(found)} {noun} is" if len(found) == 1 else f"{len(found)} {noun}s are"
