"""`mlflow_stability.check`: what is wrong with a model now, without training it.

In: a model; where given, a batch, the loss function, the optimizers. Out: a `ModelCheck`. Guarantees: the model, its
gradients, random numbers and hooks are afterwards what they were, to the last bit; what was not checked is said.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

from mlflow_stability.detectors.layer_values import gradient_flow
from mlflow_stability.errors import SettingsError
from mlflow_stability.kinds.gradients.gradient_vanishing_layers import GradientVanishingLayers
from mlflow_stability.kinds.inside.dead_units import DeadUnits
from mlflow_stability.kinds.inside.saturated_activation import SaturatedActivation
from mlflow_stability.probes.model_check.batch_loss import LossFunction
from mlflow_stability.probes.model_check.one_batch import ZERO_SHARE, BatchPass, run_batch
from mlflow_stability.probes.model_check.settings import settings_found
from mlflow_stability.probes.model_check.values import layers_of, optimizers_found, values_found
from mlflow_stability.probes.objects.module_names import plain_name, unwrapped
from mlflow_stability.vocabulary.argument import shown, with_known_names
from mlflow_stability.vocabulary.result import (
    CLIP_AT_1,
    Action,
    ActivationCheck,
    LayerCheck,
    ModelCheck,
    ModelFinding,
    Remedy,
    Severity,
)

ABOVE_CHANCE = 1.0
"""Cross-entropy by which a loss lies so far above chance that the model is sure of wrong answers."""
TIMES_CHANCE = 10.0
"""The same for a squared error, as a multiple of that of the targets' mean."""
BELOW_CHANCE = 0.1
"""Share of chance below which a model knows the answers already."""
EXPLODED = 1000.0
"""L2 norm of all gradients above which they have exploded: that of `gradient_explosion` at CRITICAL."""


@with_known_names
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
    """
    if not isinstance(model, Module):
        raise SettingsError(f"model must be a torch.nn.Module; got {shown(model)}.")
    optimizers = _optimizers(optimizer)
    named = [(plain_name(name), each) for name, each in Module.named_parameters(model, remove_duplicate=False)]
    layers, absent = layers_of(named)
    found = [
        *settings_found([model], optimizers),
        *values_found(model, named, layers),
        *optimizers_found(named, optimizers or ()),
    ]
    missing = [f"{len(absent)} parameters have no values yet (meta device, or lazy): their values."] if absent else []
    if optimizers is None:
        missing.append("Without optimizer=: parameters that are not trained, and the optimizer's epsilon.")
    name = type(unwrapped(model)).__name__
    trainable = sum(each.numel() for each in _once(named) if each.requires_grad)
    result = ModelCheck(name, sum(each.numel() for each in _once(named)), trainable)
    if batch is None:
        missing.append("Without a batch: dead units, unused parameters, gradients, and the initial loss.")
        return replace(result, findings=_sorted(found), layers=tuple(layers), not_checked=tuple(missing))
    seen = run_batch(model, batch, loss)
    if seen.reason:
        missing.append(f"Gradients of the batch: {seen.reason}.")
    norms = {plain_name(each): norm for each, norm in (seen.grad_norms or {}).items()}
    layers = [replace(each, grad_norm=norms.get(each.name)) for each in layers]
    finite = [each for each in norms.values() if math.isfinite(each)]
    return replace(
        result,
        findings=_sorted([*found, *_batch_found(seen, layers)]),
        layers=tuple(layers),
        activations=_activations(seen),
        loss=seen.loss,
        chance=seen.chance,
        grad_norm=math.sqrt(sum(each * each for each in finite)) if len(finite) == len(norms) > 0 else None,
        gradient_flow=gradient_flow(norms.values()) if norms else None,
        not_checked=tuple(missing),
    )


def _optimizers(given: Optimizer | Sequence[Optimizer] | None) -> list[Optimizer] | None:
    if given is None:
        return None
    found = [given] if isinstance(given, Optimizer) else list(given)
    for each in found:
        if not isinstance(each, Optimizer):
            raise SettingsError(f"optimizer must be a torch optimizer, or several; got {shown(each)}.")
    return found


def _once(named: Sequence[tuple[str, Tensor]]) -> list[Tensor]:
    return list({id(each): each for _, each in named}.values())


def _sorted(found: Sequence[ModelFinding]) -> tuple[ModelFinding, ...]:
    return tuple(sorted(found, key=lambda each: -each.severity))


def _activations(seen: BatchPass) -> tuple[ActivationCheck, ...]:
    return tuple(
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
    )


def _batch_found(seen: BatchPass, layers: Sequence[LayerCheck]) -> list[ModelFinding]:
    """What one batch showed."""
    if seen.error:
        place = f" in {seen.error_place}" if seen.error_place else ""
        stop = "" if seen.error.endswith(".") else "."
        message = f"The batch cannot be computed: {seen.error}{stop} It was raised{place or ' by the loss'}."
        remedies = (Remedy(Action.CHECK_BATCH_SHAPES),)
        return [ModelFinding("batch_failed", Severity.CRITICAL, message, seen.error_place, {}, remedies)]
    return [*_forward_found(seen), *_loss_found(seen), *_gradients_found(seen, layers)]


def _forward_found(seen: BatchPass) -> list[ModelFinding]:
    found: list[ModelFinding] = []
    remedies: tuple[Remedy, ...]
    broken = [name for name in seen.called if seen.outputs.get(name, {}).get("activation_nonfinite", 0) > 0]
    if broken:
        message = f"The output of {broken[0]} has NaN or infinite values, the first of {_modules(len(broken))}."
        remedies = (Remedy(Action.INSPECT_MODULE, module=broken[0]), Remedy(Action.CHECK_BATCH_VALUES))
        evidence = {"modules": float(len(broken))}
        found.append(ModelFinding("nonfinite_activations", Severity.CRITICAL, message, broken[0], evidence, remedies))
    dead = _over(seen, "activation_dead", DeadUnits().share)
    if dead:
        name, share = next(iter(dead.items()))
        message = f"{share:.0%} of the units of {name} are zero for the whole batch{_more(dead)} (threshold 50%)."
        found.append(ModelFinding("dead_units", Severity.WARNING, message, name, {"share": share}, DeadUnits.remedies))
    pinned = _over(seen, "activation_saturation", SaturatedActivation().share)
    if pinned:
        name, share = next(iter(pinned.items()))
        limit = SaturatedActivation().share
        message = f"{share:.0%} of the outputs of {name} are saturated{_more(pinned)} (threshold {limit:.0%})."
        remedies = SaturatedActivation.remedies
        found.append(ModelFinding("saturated_units", Severity.WARNING, message, name, {"share": share}, remedies))
    return found


def _over(seen: BatchPass, quantity: str, limit: float) -> dict[str, float]:
    """The modules above a limit, in the order of the forward pass."""
    shares = {name: seen.outputs.get(name, {}).get(quantity, math.nan) for name in seen.called}
    return {name: share for name, share in shares.items() if share > limit}


def _loss_found(seen: BatchPass) -> list[ModelFinding]:
    loss, chance = seen.loss, seen.chance
    if loss is None:
        return []
    remedies: tuple[Remedy, ...]
    if not math.isfinite(loss):
        remedies = (Remedy(Action.CHECK_BATCH_AND_TARGETS), Remedy(Action.COMPUTE_LOSS_IN_FLOAT32))
        return [
            ModelFinding("nonfinite_loss", Severity.CRITICAL, f"The loss of the batch is {loss}.", "", {}, remedies)
        ]
    if chance is None or chance <= 0:
        return []
    evidence = {"loss": loss, "chance": chance, "classes": float(seen.classes)}
    if loss > chance + ABOVE_CHANCE if seen.classes else loss > TIMES_CHANCE * chance:
        message = f"Loss {loss:.4g} is far above {chance:.4g}, the loss of {seen.level}: worse than guessing."
        remedies = (
            Remedy(Action.SCALE_DOWN_LAST_LAYER) if seen.classes else Remedy(Action.STANDARDISE_TARGETS),
            Remedy(Action.CHECK_TARGETS),
        )
        severity = Severity.WARNING if seen.classes else Severity.INFO
        return [ModelFinding("loss_above_chance", severity, message, "", evidence, remedies)]
    if loss < BELOW_CHANCE * chance:
        message = f"Loss {loss:.4g} is far below {chance:.4g}, the loss of {seen.level}."
        remedies = (Remedy(Action.CHECK_LEAKED_TARGETS),)
        return [ModelFinding("loss_below_chance", Severity.INFO, message, "", evidence, remedies)]
    return []


def _gradients_found(seen: BatchPass, layers: Sequence[LayerCheck]) -> list[ModelFinding]:
    if seen.grad_norms is None:
        return []
    having = [(each, each.grad_norm) for each in layers if each.trainable and each.grad_norm is not None]
    limits = GradientVanishingLayers()
    found: list[ModelFinding] = []
    remedies: tuple[Remedy, ...]
    broken = [each for each, norm in having if not math.isfinite(norm)]
    if broken and math.isfinite(seen.loss or 0.0):  # else the loss has said so
        message = f"The gradients of {_parameters(broken)} are not finite: {_names(broken)}."
        remedies = (Remedy(Action.CHECK_INFINITE_SLOPES),)
        evidence = {"parameters": float(len(broken))}
        found.append(
            ModelFinding("nonfinite_gradients", Severity.CRITICAL, message, broken[-1].name, evidence, remedies)
        )
    unused = [each for each in layers if each.trainable and each.grad_norm is None]
    if unused:
        message = f"The loss does not depend on {_parameters(unused)}: {_names(unused)}."
        remedies = (Remedy(Action.USE_OR_REMOVE_PARAMETERS),)
        evidence = {"parameters": float(len(unused))}
        found.append(ModelFinding("unused", Severity.WARNING, message, unused[0].name, evidence, remedies))
    found += _zero_gradients(having)
    largest = max((norm for _, norm in having if math.isfinite(norm)), default=0.0)
    # A bias of few values, or one before a normalisation, may have next to no gradient in a sound model.
    weights = [(each, norm) for each, norm in having if len(each.shape) >= 2]
    small = [each for each, norm in weights if 0 < norm < max(limits.smallest, limits.lost * largest)]
    if small and seen.loss != 0.0:  # a loss of zero asks for no change: its gradients are as small as they have to be
        first = small[0]
        message = (
            f"The gradients of {_parameters(small)} have vanished: the norm of {first.name} is {first.grad_norm:.3g}, "
            f"that of the largest {largest:.3g}."
        )
        evidence = {"grad_norm": first.grad_norm or 0.0, "largest": largest, "parameters": float(len(small))}
        remedies = GradientVanishingLayers.remedies
        found.append(ModelFinding("vanishing_gradients", Severity.WARNING, message, first.name, evidence, remedies))
    total = math.sqrt(sum(norm * norm for _, norm in having if math.isfinite(norm)))
    if total > EXPLODED:
        worst = max((each for each in having if math.isfinite(each[1])), key=lambda each: each[1])[0]
        message = f"The gradient norm is {total:.4g} (threshold {EXPLODED:g}), most of it in {worst.name}."
        remedies = (Remedy(Action.SCALE_DOWN_WEIGHTS_OR_TARGETS), CLIP_AT_1)
        evidence = {"grad_norm": total}
        found.append(ModelFinding("exploding_gradients", Severity.WARNING, message, worst.name, evidence, remedies))
    return found


def _zero_gradients(having: Sequence[tuple[LayerCheck, float]]) -> list[ModelFinding]:
    """Weights that do not learn; for good, or until a branch that begins as nothing has left zero."""
    dead = [each for each, norm in having if norm == 0 and len(each.shape) >= 2]
    if not dead:
        return []
    opening = [each for each, norm in having if each.largest == 0 and norm > 0 and not each.name.endswith("bias")]
    message = f"The gradients of {_parameters(dead)} are zero: {_names(dead)}."
    evidence = {"parameters": float(len(dead))}
    if opening:
        message += f" They learn once {opening[0].name} has left zero."
        return [ModelFinding("zero_gradients", Severity.INFO, message, dead[0].name, evidence)]
    remedies = (Remedy(Action.CHECK_ZEROS_BEHIND),)
    return [ModelFinding("zero_gradients", Severity.WARNING, message, dead[0].name, evidence, remedies)]


def _modules(count: int) -> str:
    return "1 module" if count == 1 else f"{count} modules"


def _parameters(found: Sequence[LayerCheck]) -> str:
    return "1 parameter" if len(found) == 1 else f"{len(found)} parameters"


def _names(found: Sequence[LayerCheck]) -> str:
    names = ", ".join(each.name for each in found[:3])
    return f"{names} and {len(found) - 3} more" if len(found) > 3 else names


def _more(found: dict[str, float]) -> str:
    return f", and as many or more in {_modules(len(found) - 1)} behind it" if len(found) > 1 else ""
