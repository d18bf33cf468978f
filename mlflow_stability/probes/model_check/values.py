"""Checks the values of a model: non-finite, huge, tiny, without variation; and whether its optimizers fit them.

In: a model. Out: the numbers of every parameter, and findings. Guarantees: values are read, never written; one transfer
from the device for all parameters together.

The gain of a weight matrix is the root of the mean square of its values, times the root of its number of inputs: by
so much it changes the size of what goes through it. It is 0.58 in torch's default, 1 by Glorot, 1.4 by He.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import Module
from torch.optim import Optimizer

from mlflow_stability.probes.hooks.untracked_ops import untracked
from mlflow_stability.probes.model_check.settings import count_of, first_names, names_of, place_of
from mlflow_stability.probes.objects.module_names import plain_name
from mlflow_stability.probes.step.readback import Readback
from mlflow_stability.probes.tensors.gradient_norm import parameters_of
from mlflow_stability.vocabulary.result import CLIP_AT_1, Action, LayerCheck, ModelFinding, Remedy, Severity

Named = tuple[str, Tensor]
_WITH_UNITS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
_HALVES = (torch.float16, torch.bfloat16)


@dataclass(frozen=True, slots=True)
class ValueLimits:
    """From where on a value, or a whole matrix, is odd."""

    huge_value: float = 1e6
    """Largest absolute value of a weight."""
    huge_share_of_type: float = 0.1
    """The same, as a share of the largest number of its type: for float16 it is 6,550."""
    tiny_value: float = 1e-10
    """A matrix whose largest absolute value is below this learns nothing: products of it vanish."""
    huge_gain: float = 4.0
    """Gain of a matrix above which what goes through it explodes within a few layers."""
    tiny_gain: float = 0.02
    """Gain of a matrix below which what goes through it vanishes within a few layers."""
    fewest_inputs: int = 16
    """Matrices with fewer inputs are not judged by their gain."""


def layers_of(named: Sequence[Named]) -> tuple[list[LayerCheck], list[str]]:
    """The numbers of every parameter by its first name, and the names of those that hold no values yet."""
    found: list[LayerCheck] = []
    there = [(name, each) for name, each in first_names(named) if _is_readable(each)]
    absent = [name for name, each in first_names(named) if not _is_readable(each)]
    scalars: list[Tensor] = []
    with untracked():
        for _, each in there:
            scalars += _numbers(each)
    values = fetched(scalars)
    for (name, each), at in zip(there, range(0, len(values), 3), strict=True):
        rms, largest, nonfinite = values[at : at + 3]
        dtype = str(each.dtype).removeprefix("torch.")
        found.append(LayerCheck(name, tuple(each.shape), dtype, each.requires_grad, rms, largest, int(nonfinite)))
    return found, absent


def fetched(scalars: Sequence[Tensor]) -> list[float]:
    """The values of scalars, on the host."""
    found: list[float] = []
    by_device: dict[torch.device, list[int]] = {}
    for number, each in enumerate(scalars):
        by_device.setdefault(each.device, []).append(number)
    values: dict[int, float] = {}
    for numbers in by_device.values():
        readback = Readback()
        found.clear()
        readback.fetch([scalars[number] for number in numbers], lambda row, _rows: found.extend(row))
        readback.drain()
        values.update(zip(numbers, found, strict=True))
    return [values[number] for number in range(len(scalars))]


def _is_readable(tensor: Tensor) -> bool:
    return not tensor.is_meta and tensor.layout is torch.strided and not nn.parameter.is_lazy(tensor)


def _numbers(tensor: Tensor) -> list[Tensor]:
    """Root of the mean square, largest absolute value, count of non-finite values: single precision at least."""
    zero = torch.zeros((), device=tensor.device)
    if not tensor.numel():
        return [zero, zero, zero]
    values = tensor.detach()
    if not values.is_floating_point() and not values.is_complex():
        return [zero, values.abs().amax().float(), zero]
    if values.is_complex() or values.dtype not in (*_HALVES, torch.float32, torch.float64):
        values = values.abs() if values.is_complex() else values.to(torch.float32)
    wide = torch.float32 if values.dtype in _HALVES else None
    norm = torch.linalg.vector_norm(values, 2.0, dtype=wide)
    largest = torch.linalg.vector_norm(values, math.inf, dtype=wide)
    # A norm of values whose squares fit no float32 is infinite without one of them being so.
    scaled = torch.linalg.vector_norm(values.to(torch.float64), 2.0) if _needs_double(values) else norm
    return [scaled / math.sqrt(values.numel()), largest, (~torch.isfinite(values)).sum()]


def _needs_double(values: Tensor) -> bool:
    return values.dtype is torch.float32 and values.is_cpu and values.numel() <= 2**24


def values_found(
    model: Module, named: Sequence[Named], layers: Sequence[LayerCheck], limits: ValueLimits | None = None
) -> list[ModelFinding]:
    """What is wrong with the values of the parameters and buffers."""
    limits = limits or ValueLimits()
    gains = _gains(model, {each.name: each for each in layers}, limits)
    buffers, _ = layers_of([(plain_name(name), each) for name, each in Module.named_buffers(model)])
    return [
        *_nonfinite(layers, "parameter", Remedy(Action.LOAD_MODEL)),
        *_nonfinite([each for each in buffers if not _is_mask(each)], "buffer", Remedy(Action.LOAD_BUFFER)),
        *_huge_values(layers, limits),
        *_gain_found(gains, limits),
        *_zeros(layers, named),
        *_alike(_matrices(model), layers),
    ]


def _nonfinite(layers: Sequence[LayerCheck], noun: str, remedy: Remedy) -> list[ModelFinding]:
    found = [each for each in layers if each.nonfinite]
    if not found:
        return []
    values = sum(each.nonfinite for each in found)
    message = f"{_counted(found, noun)} NaN or infinite values ({values:,} in all): {_listed(found)}."
    evidence = {f"{noun}s": float(len(found)), "values": float(values)}
    return [ModelFinding(f"nonfinite_{noun}s", Severity.CRITICAL, message, found[0].name, evidence, (remedy,))]


def _is_mask(buffer: LayerCheck) -> bool:
    """Whether it is an attention mask, as many a script keeps: infinite above the diagonal, zero elsewhere."""
    square = len(buffer.shape) >= 2 and buffer.shape[-1] == buffer.shape[-2]
    return square or "mask" in buffer.name.rpartition(".")[2]


def _huge_values(layers: Sequence[LayerCheck], limits: ValueLimits) -> list[ModelFinding]:
    def limit(each: LayerCheck) -> float:
        return min(limits.huge_value, limits.huge_share_of_type * torch.finfo(getattr(torch, each.dtype)).max)

    floating = [each for each in layers if "float" in each.dtype]
    found = [each for each in floating if limit(each) < each.largest < math.inf]
    if not found:
        return []
    worst = max(found, key=lambda each: each.largest)
    message = (
        f"{_counted(found, 'parameter')} huge values, the largest {worst.largest:.3g} in {worst.name} "
        f"({worst.dtype}; threshold {limit(worst):g})."
    )
    remedies = (Remedy(Action.LOAD_PARAMETER), CLIP_AT_1)
    evidence = {"largest": worst.largest, "parameters": float(len(found))}
    return [ModelFinding("huge_values", Severity.WARNING, message, worst.name, evidence, remedies)]


def _gains(model: Module, layers: dict[str, LayerCheck], limits: ValueLimits) -> dict[str, float]:
    """The gain of every weight matrix with enough inputs whose values are finite."""
    gains: dict[str, float] = {}
    for name, module in Module.named_modules(model):
        layer = layers.get(plain_name(f"{name}.weight" if name else "weight"))
        if layer is None or layer.nonfinite:
            continue
        if isinstance(module, _WITH_UNITS) and len(layer.shape) >= 2:
            inputs = math.prod(layer.shape[1:])
            if inputs >= limits.fewest_inputs:
                gains[layer.name] = layer.rms * math.sqrt(inputs)
    return gains


def _gain_found(gains: dict[str, float], limits: ValueLimits) -> list[ModelFinding]:
    huge = {name: gain for name, gain in gains.items() if gain > limits.huge_gain}
    tiny = {name: gain for name, gain in gains.items() if 0 < gain < limits.tiny_gain}
    found = []
    if huge:
        worst = max(huge, key=lambda each: huge[each])
        message = (
            f"{count_of(huge, 'weight matrix').replace('matrixs', 'matrices')} very large: {worst} multiplies the size "
            f"of its input by about {huge[worst]:.3g} (threshold {limits.huge_gain:g})."
        )
        evidence = {"gain": huge[worst], "matrices": float(len(huge))}
        remedies = (Remedy(Action.INITIALISE_BY_INPUTS),)
        found.append(ModelFinding("huge_weights", Severity.WARNING, message, worst, evidence, remedies))
    if tiny:
        worst = min(tiny, key=lambda each: tiny[each])
        most = 2 * len(tiny) >= len(gains)  # a last layer, or those behind residual branches, are meant to be small
        message = (
            f"{count_of(tiny, 'weight matrix').replace('matrixs', 'matrices')} very small: {worst} multiplies the size "
            f"of its input by about {tiny[worst]:.2g} (threshold {limits.tiny_gain:g})."
        )
        evidence = {"gain": tiny[worst], "matrices": float(len(tiny))}
        remedies = (Remedy(Action.INITIALISE_BY_INPUTS),)
        severity = Severity.WARNING if most else Severity.INFO
        found.append(ModelFinding("tiny_weights", severity, message, worst, evidence, remedies))
    return found


def _zeros(layers: Sequence[LayerCheck], named: Sequence[Named]) -> list[ModelFinding]:
    """Matrices of zeros: meant behind a residual branch; and norm scales of zeros."""
    matrices = [each for each in layers if len(each.shape) >= 2]
    found = [each for each in matrices if not each.nonfinite and each.largest < ValueLimits().tiny_value]
    if not found or not named:
        return []
    all_of_them = len(found) == len(matrices)
    largest = max(each.largest for each in found)
    what = "zeros alone" if largest == 0 else f"values of {largest:.2g} at most"
    message = f"{_counted(found, 'weight matrix', 'weight matrices')} {what}: {_listed(found)}."
    remedies = (Remedy(Action.INITIALISE_OR_KEEP_ZERO),)
    severity = Severity.WARNING if all_of_them else Severity.INFO
    evidence = {"matrices": float(len(found))}
    return [ModelFinding("zero_weights", severity, message, found[0].name, evidence, remedies)]


def _matrices(model: Module) -> list[Named]:
    """The weights whose rows belong to units."""
    modules = [(name, each) for name, each in Module.named_modules(model) if isinstance(each, _WITH_UNITS)]
    found = [
        (f"{name}.weight" if name else "weight", vars(each)["_parameters"].get("weight")) for name, each in modules
    ]
    return [(plain_name(name), each) for name, each in found if each is not None]


def _alike(named: Sequence[Named], layers: Sequence[LayerCheck]) -> list[ModelFinding]:
    """Matrices whose rows are all the same: equal units get equal gradients, and stay equal."""
    sound = {each.name for each in layers if not each.nonfinite and each.largest > 0 and len(each.shape) >= 2}
    asked = [(name, each) for name, each in first_names(named) if name in sound and each.shape[0] > 1]
    with untracked():
        spreads = fetched([(each.detach() != each.detach()[:1]).any() for _, each in asked])
    found = [one for one, differs in zip(asked, spreads, strict=True) if not differs]
    if not found:
        return []
    message = (
        f"All units of {len(found)} {'matrix' if len(found) == 1 else 'matrices'} have the same weights, and stay "
        f"alike in training: {names_of(found)}."
    )
    evidence = {"matrices": float(len(found))}
    remedies = (Remedy(Action.INITIALISE_RANDOMLY),)
    return [ModelFinding("equal_units", Severity.WARNING, message, place_of(found), evidence, remedies)]


def optimizers_found(named: Sequence[Named], optimizers: Sequence[Optimizer]) -> list[ModelFinding]:
    """What of the optimizers does not fit the model: parameters of another one, an epsilon that is zero in its type."""
    found: list[ModelFinding] = []
    known = {id(each) for _, each in named}
    strange = [each for optimizer in optimizers for each in parameters_of(optimizer) if id(each) not in known]
    if strange:
        every = sum(len(parameters_of(each)) for each in optimizers)
        message = f"{len(strange)} of {every} parameters in the optimizer are not parameters of this model."
        remedies = (Remedy(Action.CREATE_OPTIMIZER_LATER),)
        evidence = {"parameters": float(len(strange)), "of": float(every)}
        found.append(ModelFinding("not_in_model", Severity.WARNING, message, "", evidence, remedies))
    for optimizer in optimizers:
        for number, group in enumerate(optimizer.param_groups):
            found += _lost_eps(optimizer, number, group.get("eps"), group["params"])
    if not any(each.requires_grad for _, each in named) and named:
        message = "No parameter requires a gradient: nothing would be trained."
        remedies = (Remedy(Action.UNFREEZE_PARAMETERS),)
        found.append(ModelFinding("nothing_trainable", Severity.WARNING, message, "", {}, remedies))
    return found


def _lost_eps(optimizer: Optimizer, number: int, eps: object, parameters: Sequence[Tensor]) -> list[ModelFinding]:
    if not isinstance(eps, int | float):
        return []
    types = {each.dtype for each in parameters if each.is_floating_point()}
    lost = [each for each in types if eps < torch.finfo(each).smallest_normal * torch.finfo(each).eps / 2]
    if not lost:
        return []
    dtype = str(lost[0]).removeprefix("torch.")
    kind = type(optimizer).__name__
    message = (
        f"The epsilon of {kind} ({eps:g}, group {number}) is zero in {dtype}, the type of its parameters. "
        "A parameter without a gradient becomes 0/0, which is NaN."
    )
    remedies = (Remedy(Action.KEEP_FP32_WITH_AUTOCAST), Remedy(Action.SET_EPS_OF_OPTIMIZER, module=kind))
    return [ModelFinding("optimizer_eps", Severity.WARNING, message, "", {"eps": float(eps)}, remedies)]


def _counted(found: Sequence[LayerCheck], noun: str, plural: str = "") -> str:
    """`1 parameter has`, `5 parameters have`."""
    return f"1 {noun} has" if len(found) == 1 else f"{len(found)} {plural or noun + 's'} have"


def _listed(found: Sequence[LayerCheck]) -> str:
    names = ", ".join(each.name for each in found[:3])
    return f"{names} and {len(found) - 3} more" if len(found) > 3 else names
