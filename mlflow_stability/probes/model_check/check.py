"""`mlflow_stability.check`: what is wrong with a model now, without training it.

Guarantees: the model, its gradients, random numbers and hooks are afterwards what they were, to the last bit; what was
not checked is reported.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

from mlflow_stability.detectors.layer_values import gradient_flow
from mlflow_stability.errors import SettingsError
from mlflow_stability.kinds.gradients.gradient_vanishing import GradientVanishingLayers
from mlflow_stability.kinds.inside.activations import DeadUnits, SaturatedActivation
from mlflow_stability.probes.model_check.one_batch import ZERO_SHARE, BatchPass, LossFunction, run_batch
from mlflow_stability.probes.model_check.settings import model_finding, settings_found
from mlflow_stability.probes.model_check.values import layer_names, layers_of, optimizers_found, values_found
from mlflow_stability.probes.model_discovery import plain_name, unwrapped
from mlflow_stability.vocabulary.argument import check_arguments, short_repr
from mlflow_stability.vocabulary.result import (
    CLIP_GRADIENTS,
    Action,
    ActivationCheck,
    LayerCheck,
    ModelCheck,
    ModelFinding,
    Remedy,
    Severity,
)
from mlflow_stability.vocabulary.text.phrases import counted

ABOVE_CHANCE = 1.0  # cross-entropy above chance with which the model is sure of wrong answers
TIMES_CHANCE = 10.0  # squared error as a multiple of that of the targets' mean
BELOW_CHANCE = 0.1  # share of chance below which a model knows the answers
EXPLODED_NORM = 1000.0  # L2 norm of all gradients, as of `gradient_explosion` at CRITICAL


@check_arguments
def check(
    model: Module,
    batch: Any = None,
    *,
    loss: LossFunction | None = None,
    optimizer: Optimizer | Sequence[Optimizer] | None = None,
) -> ModelCheck:
    """What is wrong with a model now, without training it.

    Without a batch, the values and settings are checked: non-finite, huge, tiny or equal weights, frozen and tied
    parameters, an epsilon too small for its type. With `optimizer`, what it does not train, and whether its epsilon is
    zero in the type of the parameters. With a batch, one forward and one backward pass show dead units, unused
    parameters, gradients that vanish or explode, and how the loss compares with guessing.

    Model, gradients, buffers, random numbers, hooks and training modes are afterwards what they were, to the last bit.

    Args:
        model: Any module; wrappers (DDP, torch.compile) are looked through.
        batch: What the model is called with: ``(inputs, targets)``, a mapping of keyword arguments, or the inputs. It
            is moved to the device of the model.
        loss: Called as ``loss(output, targets)``, or as ``loss(output, batch)`` where the batch is a mapping. Without
            it: the ``loss`` of the output, cross-entropy for whole numbers as targets, the mean squared error for
            targets of the output's shape.
        optimizer: The optimizer, or several.

    Returns:
        What was found, with the numbers of each parameter and module.

    Raises:
        SettingsError: The model, optimizer or loss is of another type, or the model cannot be called so.

    Example:

        >>> from torch import nn
        >>> [finding.check for finding in check(nn.Linear(4, 1).requires_grad_(False)).findings]
        ['nothing_trainable', 'frozen']
    """
    if not isinstance(model, Module):
        raise SettingsError(f"model must be a torch.nn.Module; got {short_repr(model)}.")
    optimizers = _optimizers(optimizer)
    named = [
        (plain_name(name), parameter) for name, parameter in Module.named_parameters(model, remove_duplicate=False)
    ]
    layers, absent = layers_of(named)
    findings = [
        *settings_found([model], optimizers),
        *values_found(model, layers),
        *optimizers_found(named, optimizers or ()),
    ]
    missing = [f"{len(absent)} parameters have no values yet (meta device, or lazy): their values."] if absent else []
    if optimizers is None:
        missing.append("Without optimizer=: parameters that are not trained, and the optimizer's epsilon.")
    model_name = type(unwrapped(model)).__name__
    trainable = sum(parameter.numel() for parameter in _once(named) if parameter.requires_grad)
    result = ModelCheck(model_name, sum(parameter.numel() for parameter in _once(named)), trainable)
    if batch is None:
        missing.append("Without a batch: dead units, unused parameters, gradients, and the initial loss.")
        return replace(result, findings=_sorted(findings), layers=tuple(layers), not_checked=tuple(missing))
    seen = run_batch(model, batch, loss)
    if seen.reason:
        missing.append(f"Gradients of the batch: {seen.reason}.")
    norms = {plain_name(name): norm for name, norm in (seen.grad_norms or {}).items()}
    layers = [replace(layer, grad_norm=norms.get(layer.name)) for layer in layers]
    finite = [norm for norm in norms.values() if math.isfinite(norm)]
    return replace(
        result,
        findings=_sorted([*findings, *_batch_found(seen, layers)]),
        layers=tuple(layers),
        activations=tuple(
            ActivationCheck(
                name,
                mean=numbers["activation_mean"],
                std=numbers["activation_std"],
                min=numbers["activation_min"],
                max=numbers["activation_max"],
                zero_share=numbers[ZERO_SHARE],
                nonfinite_share=numbers["activation_nonfinite"],
            )
            for name, numbers in seen.outputs.items()
        ),
        loss=seen.loss,
        chance=seen.chance,
        grad_norm=math.sqrt(sum(norm * norm for norm in finite)) if len(finite) == len(norms) > 0 else None,
        gradient_flow=gradient_flow(norms.values()) if norms else None,
        not_checked=tuple(missing),
    )


def _optimizers(given: Optimizer | Sequence[Optimizer] | None) -> list[Optimizer] | None:
    if given is None:
        return None
    optimizers = [given] if isinstance(given, Optimizer) else list(given)
    for optimizer in optimizers:
        if not isinstance(optimizer, Optimizer):
            raise SettingsError(f"optimizer must be a torch optimizer, or several; got {short_repr(optimizer)}.")
    return optimizers


def _once(named: Sequence[tuple[str, Tensor]]) -> list[Tensor]:
    return list({id(parameter): parameter for _, parameter in named}.values())


def _sorted(findings: Sequence[ModelFinding]) -> tuple[ModelFinding, ...]:
    return tuple(sorted(findings, key=lambda finding: -finding.severity))


def _batch_found(seen: BatchPass, layers: Sequence[LayerCheck]) -> list[ModelFinding]:
    if seen.error:
        place = f" in {seen.error_place}" if seen.error_place else " by the loss"
        stop = "" if seen.error.endswith(".") else "."
        message = f"The batch cannot be computed: {seen.error}{stop} It was raised{place}."
        remedies = (Remedy(Action.CHECK_BATCH_SHAPES),)
        return [model_finding("batch_failed", Severity.CRITICAL, message, seen.error_place, remedies)]
    return [*_forward_found(seen), *_loss_found(seen), *_gradients_found(seen, layers)]


def _forward_found(seen: BatchPass) -> Iterator[ModelFinding]:
    broken = list(_over(seen, "activation_nonfinite", 0.0))
    if broken:
        message = (
            f"The output of {broken[0]} has NaN or infinite values, the first of {counted(len(broken), 'module')}."
        )
        remedies = (Remedy(Action.INSPECT_MODULE, module=broken[0]), Remedy(Action.CHECK_BATCH_VALUES))
        count = len(broken)
        yield model_finding("nonfinite_activations", Severity.CRITICAL, message, broken[0], remedies, modules=count)
    dead = _over(seen, "activation_dead", DeadUnits().share)
    if dead:
        name, share = next(iter(dead.items()))
        message = f"{share:.0%} of the units of {name} are zero for the whole batch{_more(dead)} (threshold 50%)."
        yield model_finding("dead_units", Severity.WARNING, message, name, DeadUnits.remedies, share=share)
    limit = SaturatedActivation().share
    saturated = _over(seen, "activation_saturation", limit)
    if saturated:
        name, share = next(iter(saturated.items()))
        message = f"{share:.0%} of the outputs of {name} are saturated{_more(saturated)} (threshold {limit:.0%})."
        yield model_finding(
            "saturated_units", Severity.WARNING, message, name, SaturatedActivation.remedies, share=share
        )


def _over(seen: BatchPass, quantity: str, limit: float) -> dict[str, float]:
    shares = {name: seen.outputs.get(name, {}).get(quantity, math.nan) for name in seen.called}
    return {name: share for name, share in shares.items() if share > limit}


def _loss_found(seen: BatchPass) -> Iterator[ModelFinding]:
    loss, chance, classes = seen.loss, seen.chance, seen.classes
    if loss is None:
        return
    if not math.isfinite(loss):
        remedies = (Remedy(Action.CHECK_BATCH_AND_TARGETS), Remedy(Action.COMPUTE_LOSS_IN_FLOAT32))
        message = f"The loss of the batch is {loss}."
        yield model_finding("nonfinite_loss", Severity.CRITICAL, message, remedies=remedies)
    elif chance is not None and chance > 0:
        numbers = {"loss": loss, "chance": chance, "classes": classes}
        if loss > chance + ABOVE_CHANCE if classes else loss > TIMES_CHANCE * chance:
            message = f"Loss {loss:.4g} is far above {chance:.4g}, the loss of {seen.level}: worse than guessing."
            first = Action.SCALE_DOWN_LAST_LAYER if classes else Action.STANDARDISE_TARGETS
            remedies = (Remedy(first), Remedy(Action.CHECK_TARGETS))
            severity = Severity.WARNING if classes else Severity.INFO
            yield model_finding("loss_above_chance", severity, message, "", remedies, **numbers)
        elif loss < BELOW_CHANCE * chance:
            message = f"Loss {loss:.4g} is far below {chance:.4g}, the loss of {seen.level}."
            leaked = (Remedy(Action.CHECK_LEAKED_TARGETS),)
            yield model_finding("loss_below_chance", Severity.INFO, message, "", leaked, **numbers)


def _gradients_found(seen: BatchPass, layers: Sequence[LayerCheck]) -> Iterator[ModelFinding]:
    if seen.grad_norms is None:
        return
    norms = [(layer, layer.grad_norm) for layer in layers if layer.trainable and layer.grad_norm is not None]
    broken = [layer for layer, norm in norms if not math.isfinite(norm)]
    if broken and math.isfinite(seen.loss or 0.0):  # else the loss has a finding
        message = f"The gradients of {counted(len(broken), 'parameter')} are not finite: {layer_names(broken)}."
        remedies, count = (Remedy(Action.CHECK_INFINITE_SLOPES),), len(broken)
        place = broken[-1].name
        yield model_finding("nonfinite_gradients", Severity.CRITICAL, message, place, remedies, parameters=count)
    unused = [layer for layer in layers if layer.trainable and layer.grad_norm is None]
    if unused:
        message = f"The loss does not depend on {counted(len(unused), 'parameter')}: {layer_names(unused)}."
        remedies, count = (Remedy(Action.USE_OR_REMOVE_PARAMETERS),), len(unused)
        yield model_finding("unused", Severity.WARNING, message, unused[0].name, remedies, parameters=count)
    yield from _zero_gradients(norms)
    finite = [(layer, norm) for layer, norm in norms if math.isfinite(norm)]
    yield from _vanishing_gradients(seen, finite)
    total = math.sqrt(sum(norm * norm for _, norm in finite))
    if total > EXPLODED_NORM:
        worst, _ = max(finite, key=lambda pair: pair[1])
        message = f"The gradient norm is {total:.4g} (threshold {EXPLODED_NORM:g}), most of it in {worst.name}."
        advice = (Remedy(Action.SCALE_DOWN_WEIGHTS_OR_TARGETS), CLIP_GRADIENTS)
        yield model_finding("exploding_gradients", Severity.WARNING, message, worst.name, advice, grad_norm=total)


def _vanishing_gradients(seen: BatchPass, finite: Sequence[tuple[LayerCheck, float]]) -> Iterator[ModelFinding]:
    limits = GradientVanishingLayers()
    largest = max((norm for _, norm in finite), default=0.0)
    # A small bias, or one before a normalisation, may have almost no gradient in a normal model.
    weights = [(layer, norm) for layer, norm in finite if len(layer.shape) >= 2]
    small = [(layer, norm) for layer, norm in weights if 0 < norm < max(limits.smallest, limits.lost * largest)]
    if small and seen.loss != 0.0:  # gradients of a loss of zero are small
        first, norm = small[0]
        message = (
            f"The gradients of {counted(len(small), 'parameter')} have vanished: the norm of {first.name} is "
            f"{norm:.3g}, that of the largest {largest:.3g}."
        )
        numbers = {"grad_norm": norm, "largest": largest, "parameters": len(small)}
        remedies = GradientVanishingLayers.remedies
        yield model_finding("vanishing_gradients", Severity.WARNING, message, first.name, remedies, **numbers)


def _zero_gradients(norms: Sequence[tuple[LayerCheck, float]]) -> Iterator[ModelFinding]:
    dead = [layer for layer, norm in norms if norm == 0 and len(layer.shape) >= 2]
    if not dead:
        return
    # A branch that begins as nothing learns first, and then the layers before it.
    opening = [layer for layer, norm in norms if layer.largest == 0 and norm > 0 and not layer.name.endswith("bias")]
    message = f"The gradients of {counted(len(dead), 'parameter')} are zero: {layer_names(dead)}."
    severity = Severity.INFO if opening else Severity.WARNING
    remedies = () if opening else (Remedy(Action.CHECK_ZEROS_BEHIND),)
    if opening:
        message += f" They learn once {opening[0].name} has left zero."
    yield model_finding("zero_gradients", severity, message, dead[0].name, remedies, parameters=len(dead))


def _more(shares: dict[str, float]) -> str:
    return f", and as many or more in {counted(len(shares) - 1, 'module')} behind it" if len(shares) > 1 else ""
