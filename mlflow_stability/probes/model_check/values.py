"""Checks the values of a model: non-finite, huge, tiny, without variation; and whether its optimizers fit them.

The gain of a weight matrix is the root mean square of its values, times the root of its number of inputs: the factor by
which it changes the size of its input. It is 0.58 in torch's default, 1 by Glorot, 1.4 by He. Guarantees: values are
read, never written; one transfer from the device for all parameters together.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn import Module
from torch.optim import Optimizer

from mlflow_stability.probes.gradient_norm import parameters_of
from mlflow_stability.probes.hooks.thread_state import untracked
from mlflow_stability.probes.model_check.settings import count_of, first_names, model_finding, names_of, place_of
from mlflow_stability.probes.model_discovery import plain_name
from mlflow_stability.probes.step.readback import Readback
from mlflow_stability.probes.tensor_sums import HALVES
from mlflow_stability.vocabulary.result import CLIP_GRADIENTS, Action, LayerCheck, ModelFinding, Remedy, Severity
from mlflow_stability.vocabulary.text.phrases import counted, some_of

Named = tuple[str, Tensor]
_WITH_UNITS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
_MATRIX = "weight matrix", "weight matrices"


HUGE_VALUE = 1e6  # absolute value of a weight
HUGE_SHARE_OF_TYPE = 0.1  # the same as a share of the largest number of its type: 6,550 for float16
TINY_VALUE = 1e-10  # a matrix whose largest absolute value is below this learns nothing: products of it vanish
HUGE_GAIN = 4.0  # of a matrix: what goes through it explodes within a few layers
TINY_GAIN = 0.02  # of a matrix: what goes through it vanishes within a few layers
MIN_INPUTS = 16  # matrices with fewer are not judged by their gain


def layers_of(named: Sequence[Named]) -> tuple[list[LayerCheck], list[str]]:
    """Return the numbers of every parameter by its first name, and the names of those without values yet."""
    layers: list[LayerCheck] = []
    there = [(name, tensor) for name, tensor in first_names(named) if _is_readable(tensor)]
    absent = [name for name, tensor in first_names(named) if not _is_readable(tensor)]
    scalars: list[Tensor] = []
    with untracked():
        for _, tensor in there:
            scalars += _numbers(tensor)
    values = fetched(scalars)
    for (name, tensor), at in zip(there, range(0, len(values), 3), strict=True):
        rms, largest, nonfinite = values[at : at + 3]
        dtype = str(tensor.dtype).removeprefix("torch.")
        layers.append(LayerCheck(name, tuple(tensor.shape), dtype, tensor.requires_grad, rms, largest, int(nonfinite)))
    return layers, absent


def fetched(scalars: Sequence[Tensor]) -> list[float]:
    by_device: dict[torch.device, list[int]] = {}
    for number, scalar in enumerate(scalars):
        by_device.setdefault(scalar.device, []).append(number)
    numbers_on_host: dict[int, float] = {}
    for places in by_device.values():
        row: list[float] = []
        readback = Readback()
        readback.fetch([scalars[place] for place in places], lambda values, _rows, row=row: row.extend(values))  # type: ignore[misc]
        readback.drain()
        numbers_on_host.update(zip(places, row, strict=True))
    return [numbers_on_host[place] for place in range(len(scalars))]


def _is_readable(tensor: Tensor) -> bool:
    return not tensor.is_meta and tensor.layout is torch.strided and not nn.parameter.is_lazy(tensor)


def _numbers(tensor: Tensor) -> list[Tensor]:
    zero = torch.zeros((), device=tensor.device)
    if not tensor.numel():
        return [zero, zero, zero]
    values = tensor.detach()
    if not values.is_floating_point() and not values.is_complex():
        return [zero, values.abs().amax().float(), zero]
    if values.is_complex() or values.dtype not in (*HALVES, torch.float32, torch.float64):
        values = values.abs() if values.is_complex() else values.to(torch.float32)
    wide = torch.float32 if values.dtype in HALVES else None
    norm = torch.linalg.vector_norm(values, 2.0, dtype=wide)
    largest = torch.linalg.vector_norm(values, math.inf, dtype=wide)
    if values.dtype is torch.float32 and values.is_cpu and values.numel() <= 2**24:
        # A norm of finite values whose squares exceed float32 is infinite.
        norm = torch.linalg.vector_norm(values.to(torch.float64), 2.0)
    return [norm / math.sqrt(values.numel()), largest, (~torch.isfinite(values)).sum()]


def values_found(model: Module, layers: Sequence[LayerCheck]) -> list[ModelFinding]:
    gains = _gains(model, {layer.name: layer for layer in layers})
    buffers, _ = layers_of([(plain_name(name), entry) for name, entry in Module.named_buffers(model)])
    modules = [(name, module) for name, module in Module.named_modules(model) if isinstance(module, _WITH_UNITS)]
    weights = [(f"{name}.weight" if name else "weight", module._parameters.get("weight")) for name, module in modules]
    return [
        *_nonfinite(layers, "parameter", Remedy(Action.LOAD_MODEL)),
        *_nonfinite([buffer for buffer in buffers if not _is_mask(buffer)], "buffer", Remedy(Action.LOAD_BUFFER)),
        *_huge_values(layers),
        *_gain_found(gains),
        *_zeros(layers),
        *_alike([(plain_name(name), weight) for name, weight in weights if weight is not None], layers),
    ]


def _nonfinite(layers: Sequence[LayerCheck], noun: str, remedy: Remedy) -> Iterator[ModelFinding]:
    broken = [layer for layer in layers if layer.nonfinite]
    if broken:
        values = sum(layer.nonfinite for layer in broken)
        message = f"{_having(broken, noun)} NaN or infinite values ({values:,} in all): {layer_names(broken)}."
        numbers = {f"{noun}s": len(broken), "values": values}
        yield model_finding(f"nonfinite_{noun}s", Severity.CRITICAL, message, broken[0].name, (remedy,), **numbers)


# Whether it may be an attention mask: infinite above the diagonal, zero elsewhere.
def _is_mask(buffer: LayerCheck) -> bool:
    square = len(buffer.shape) >= 2 and buffer.shape[-1] == buffer.shape[-2]
    return square or "mask" in buffer.name.rpartition(".")[2]


def _huge_values(layers: Sequence[LayerCheck]) -> Iterator[ModelFinding]:
    def limit(layer: LayerCheck) -> float:
        return min(HUGE_VALUE, HUGE_SHARE_OF_TYPE * torch.finfo(getattr(torch, layer.dtype)).max)

    floating = [layer for layer in layers if "float" in layer.dtype]
    huge = [layer for layer in floating if limit(layer) < layer.largest < math.inf]
    if not huge:
        return
    worst = max(huge, key=lambda layer: layer.largest)
    message = (
        f"{_having(huge, 'parameter')} huge values, the largest {worst.largest:.3g} in {worst.name} "
        f"({worst.dtype}; threshold {limit(worst):g})."
    )
    remedies = (Remedy(Action.LOAD_PARAMETER), CLIP_GRADIENTS)
    numbers = {"largest": worst.largest, "parameters": len(huge)}
    yield model_finding("huge_values", Severity.WARNING, message, worst.name, remedies, **numbers)


def _gains(model: Module, layers: dict[str, LayerCheck]) -> dict[str, float]:
    gains: dict[str, float] = {}
    for name, module in Module.named_modules(model):
        layer = layers.get(plain_name(f"{name}.weight" if name else "weight"))
        if layer is None or layer.nonfinite:
            continue
        if isinstance(module, _WITH_UNITS) and len(layer.shape) >= 2:
            inputs = math.prod(layer.shape[1:])
            if inputs >= MIN_INPUTS:
                gains[layer.name] = layer.rms * math.sqrt(inputs)
    return gains


def _gain_found(gains: dict[str, float]) -> Iterator[ModelFinding]:
    huge = {name: gain for name, gain in gains.items() if gain > HUGE_GAIN}
    tiny = {name: gain for name, gain in gains.items() if 0 < gain < TINY_GAIN}
    remedies = (Remedy(Action.INITIALISE_BY_INPUTS),)
    if huge:
        worst, gain = max(huge.items(), key=lambda pair: pair[1])
        message = (
            f"{count_of(huge, *_MATRIX)} very large: {worst} multiplies the size of its input by about {gain:.3g} "
            f"(threshold {HUGE_GAIN:g})."
        )
        yield model_finding("huge_weights", Severity.WARNING, message, worst, remedies, gain=gain, matrices=len(huge))
    if tiny:
        worst, gain = min(tiny.items(), key=lambda pair: pair[1])
        message = (
            f"{count_of(tiny, *_MATRIX)} very small: {worst} multiplies the size of its input by about {gain:.2g} "
            f"(threshold {TINY_GAIN:g})."
        )
        # Last layers, or those behind residual branches, are small on purpose.
        severity = Severity.WARNING if 2 * len(tiny) >= len(gains) else Severity.INFO
        yield model_finding("tiny_weights", severity, message, worst, remedies, gain=gain, matrices=len(tiny))


# Matrices of zeros, which are intended behind a residual branch.
def _zeros(layers: Sequence[LayerCheck]) -> Iterator[ModelFinding]:
    matrices = [layer for layer in layers if len(layer.shape) >= 2]
    zeros = [layer for layer in matrices if not layer.nonfinite and layer.largest < TINY_VALUE]
    if zeros:
        largest = max(layer.largest for layer in zeros)
        what = "zeros alone" if largest == 0 else f"values of {largest:.2g} at most"
        message = f"{_having(zeros, *_MATRIX)} {what}: {layer_names(zeros)}."
        severity = Severity.WARNING if len(zeros) == len(matrices) else Severity.INFO
        remedies = (Remedy(Action.INITIALISE_OR_KEEP_ZERO),)
        yield model_finding("zero_weights", severity, message, zeros[0].name, remedies, matrices=len(zeros))


# Matrices whose rows are all the same: equal units get equal gradients, and stay equal.
def _alike(named: Sequence[Named], layers: Sequence[LayerCheck]) -> Iterator[ModelFinding]:
    sound = {layer.name for layer in layers if not layer.nonfinite and layer.largest > 0 and len(layer.shape) >= 2}
    checked = [(name, weight) for name, weight in first_names(named) if name in sound and weight.shape[0] > 1]
    with untracked():
        spreads = fetched([(weight.detach() != weight.detach()[:1]).any() for _, weight in checked])
    alike = [pair for pair, differs in zip(checked, spreads, strict=True) if not differs]
    if alike:
        message = (
            f"All units of {counted(len(alike), 'matrix', 'matrices')} have the same weights, and stay "
            f"alike in training: {names_of(alike)}."
        )
        remedies = (Remedy(Action.INITIALISE_RANDOMLY),)
        yield model_finding("equal_units", Severity.WARNING, message, place_of(alike), remedies, matrices=len(alike))


def optimizers_found(named: Sequence[Named], optimizers: Sequence[Optimizer]) -> Iterator[ModelFinding]:
    """Yield findings about optimizers: parameters of another model, an epsilon that is zero in its type."""
    own = {id(parameter) for _, parameter in named}
    held = [parameter for optimizer in optimizers for parameter in parameters_of(optimizer)]
    strange = sum(id(parameter) not in own for parameter in held)
    if strange:
        message = f"{strange} of {len(held)} parameters in the optimizer are not parameters of this model."
        later, numbers = (Remedy(Action.CREATE_OPTIMIZER_LATER),), {"parameters": strange, "of": len(held)}
        yield model_finding("not_in_model", Severity.WARNING, message, "", later, **numbers)
    for optimizer in optimizers:
        for number, group in enumerate(optimizer.param_groups):
            yield from _lost_eps(optimizer, number, group.get("eps"), group["params"])
    if named and not any(parameter.requires_grad for _, parameter in named):
        message = "No parameter requires a gradient: nothing would be trained."
        unfreeze = (Remedy(Action.UNFREEZE_PARAMETERS),)
        yield model_finding("nothing_trainable", Severity.WARNING, message, remedies=unfreeze)


def _lost_eps(optimizer: Optimizer, number: int, eps: object, parameters: Sequence[Tensor]) -> Iterator[ModelFinding]:
    if not isinstance(eps, int | float):
        return
    types = {parameter.dtype for parameter in parameters if parameter.is_floating_point()}
    lost = [dtype for dtype in types if eps < torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps / 2]
    if lost:
        kind = type(optimizer).__name__
        message = (
            f"The epsilon of {kind} ({eps:g}, group {number}) is zero in {str(lost[0]).removeprefix('torch.')}, the "
            "type of its parameters. A parameter without a gradient becomes 0/0, which is NaN."
        )
        remedies = (Remedy(Action.KEEP_FP32_WITH_AUTOCAST), Remedy(Action.SET_EPS_OF_OPTIMIZER, module=kind))
        yield model_finding("optimizer_eps", Severity.WARNING, message, remedies=remedies, eps=eps)


def _having(layers: Sequence[LayerCheck], noun: str, plural: str = "") -> str:
    return f"{counted(len(layers), noun, plural)} {'has' if len(layers) == 1 else 'have'}"


def layer_names(layers: Sequence[LayerCheck]) -> str:
    return some_of([layer.name for layer in layers])
