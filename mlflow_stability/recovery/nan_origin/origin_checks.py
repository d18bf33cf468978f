"""Explain an origin: optimizer, loss function or overflow; the finding `nan_origin`, and its remedies.

Guarantees: only torch's own optimizers are tried, on copies; the autograd graph is only read. Logarithm of zero and
division by zero are not overflows: no wider type fixes them.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from mlflow_stability.kinds.reported.broken_steps import NanOriginFacts, NanSource, TensorFacts
from mlflow_stability.probes.model_discovery import state_of
from mlflow_stability.recovery.nan_origin.batch_capture import facts_of_tensor
from mlflow_stability.recovery.nan_origin.nan_trace import NanOrigin, word_of
from mlflow_stability.recovery.state.host_copy import is_finite
from mlflow_stability.vocabulary.result import LOWER_RATE_2_TO_5, Action, Finding, Remedy, Severity

MOST_BYTES = 64 * 2**20  # updates of larger weights are not tried


def nonfinite_weight(
    name: str, stand_in: Tensor, optimizers: Sequence[Optimizer], parameter: Tensor | None = None
) -> NanOrigin:
    """Explain a non-finite weight; `parameter` is the one that the optimizers know."""
    module, _, own = name.rpartition(".")
    facts = facts_of_tensor(name, stand_in)
    for optimizer in optimizers:
        groups = [group for group in optimizer.param_groups if any(member is parameter for member in group["params"])]
        if parameter is None or not groups:
            continue
        by_optimizer = NanOrigin("optimizer", module, type(optimizer).__name__, output=facts)
        state = {
            key: value
            for key, value in state_of(optimizer).get(parameter, {}).items()
            if isinstance(value, Tensor) and value.is_floating_point()
        }
        for key, value in (*state.items(), ("lr", torch.as_tensor(groups[0].get("lr", 0.0), dtype=torch.float64))):
            if not is_finite(value):
                return replace(by_optimizer, name=key, inputs=(facts_of_tensor(key, value),))
        if _would_break(optimizer, groups[0], parameter):
            return replace(by_optimizer, name="update")
    return NanOrigin("weight", module, own, name=name, output=facts)


def _would_break(optimizer: Optimizer, group: dict[str, Any], parameter: Tensor) -> bool:
    """Whether a step from zero with a gradient of zero breaks the values that are broken now."""
    kind = type(optimizer)
    step = getattr(kind.step, "__wrapped__", None)  # without the hooks that a step has, ours among them
    if step is None or not kind.__module__.startswith("torch.optim.") or kind.__name__ == "LBFGS":
        return False
    if parameter.nbytes > MOST_BYTES:
        return False
    state_now = optimizer.state.get(parameter, {})  # not by subscript, which would make an entry
    trial = torch.zeros_like(parameter, requires_grad=True)
    trial.grad = torch.zeros_like(parameter)
    copy = kind.__new__(kind)
    state = {key: value.clone() if isinstance(value, Tensor) else value for key, value in state_now.items()}
    copy.__dict__.update(optimizer.__dict__)
    copy.state = type(optimizer.state)(dict, {trial: state})
    copy.param_groups = [{**group, "params": [trial], "foreach": False, "fused": False}]
    step(copy)
    return bool((~trial.detach().isfinite() & ~parameter.detach().isfinite()).any())


MOST_NODES = 4096  # nodes of the autograd graph that are visited between the loss and the outputs
BREAKING = frozenset(
    {
        "acos", "acosh", "asin", "atanh", "binary_cross_entropy", "div", "exp", "expm1", "lgamma", "linalg_vector_norm",
        "log", "log10", "log1p", "log2", "logit", "nll_loss", "nll_loss2d", "norm", "pow", "prod", "reciprocal",
        "rsqrt", "sqrt", "std", "tan", "var", "xlogy",
    }
)  # fmt: skip
"""Operations that make non-finite values from finite ones far from the limits of the type. The last step of a
cross-entropy is among them: its mean over no targets is 0/0."""


def loss_operations(loss: Any, outputs: Sequence[tuple[str, int]]) -> tuple[str, ...]:
    """Return the operations between outputs and loss; empty where the graph does not lead to the outputs."""
    ends = set(outputs)
    names: list[str] = []
    seen = {loss}
    waiting = deque([loss])
    arrived = False
    while waiting and len(seen) < MOST_NODES:
        node = waiting.popleft()
        if node is None:
            continue
        if (node.name(), node._sequence_nr()) in ends:
            arrived = True
            continue
        exponent = getattr(node, "_saved_exponent", None)
        is_whole = isinstance(exponent, int | float) and exponent >= 0 and float(exponent).is_integer()
        # A square or a cube is finite for every usual number, and so is a quotient whose divisor is clamped.
        if not is_whole and not _has_clamped_divisor(node):
            names.append(word_of(node.name()))
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                waiting.append(following)
    return tuple(dict.fromkeys(reversed(names))) if arrived else ()


def _has_clamped_divisor(node: Any) -> bool:
    divisor = node.next_functions[1][0] if word_of(node.name()) == "div" and len(node.next_functions) > 1 else None
    while divisor is not None and word_of(divisor.name()) == "expand":
        divisor = divisor.next_functions[0][0]
    return (getattr(divisor, "_saved_min", None) or 0) > 0


def suspects(operations: Sequence[str]) -> tuple[str, ...]:
    """Return the operations that can have broken a loss; last those that only large numbers break."""
    breaking = (operation for operation in operations if operation in BREAKING)
    return tuple(sorted(breaking, key=lambda operation: operation in ENDLESS))


LARGEST = {"float16": 65504.0, "bfloat16": 3.3895e38, "float32": 3.4028e38, "float64": 1.7977e308}
"""Largest finite value of each type."""
ENDLESS = frozenset({"cosh", "exp", "exp2", "expm1", "linalg_vector_norm", "norm", "prod", "sinh", "std", "var"})
"""Finite for every finite number, so infinite only by overflow."""
DIVIDING = frozenset({"addcdiv", "div", "divide", "true_divide"})
POLES = BREAKING - ENDLESS - DIVIDING - {"pow"}  # infinite or undefined at some finite number
HIGHEST_POWER = 4  # values whose power of this much is finite did not overflow


def overflowed(origin: NanOrigin) -> bool:
    """Whether large finite inputs have made a result beyond the range of the type."""
    output, name = origin.output, origin.operation
    limit = None if output is None else LARGEST.get(output.dtype)
    if output is None or limit is None or origin.source not in ("forward", "backward"):
        return False
    largest = _largest(origin.inputs)
    if output.nan:  # infinity minus infinity within one operation
        return name not in BREAKING and not any(facts.inf for facts in origin.inputs) and largest > math.sqrt(limit)
    if name in DIVIDING:
        ends = [(divisor.least, divisor.greatest) for divisor in origin.inputs[1:2]]
        by_zero = any(low is not None and high is not None and low <= 0.0 <= high for low, high in ends)
        return not by_zero and _largest(origin.inputs[:1]) > math.sqrt(limit)
    if name == "pow":
        return largest > math.pow(limit, 1 / HIGHEST_POWER)
    return bool(output.inf) and name not in POLES


def _largest(several: Sequence[TensorFacts]) -> float:
    ends = [end for facts in several for end in (facts.least, facts.greatest) if end is not None]
    return max(map(abs, ends), default=0.0)


REMEDIES = {
    "input": (Remedy(Action.INSPECT_SAVED_BATCH),),
    "weight": (Remedy(Action.CHECK_WRITER_OF_WEIGHT),),
    "buffer": (Remedy(Action.CHECK_WRITER_OF_BUFFER),),
    "optimizer": (LOWER_RATE_2_TO_5, Remedy(Action.RAISE_EPS_OR_RESET_OPTIMIZER)),
    "forward": (Remedy(Action.KEEP_INPUTS_VALID),),
    "backward": (Remedy(Action.KEEP_INPUTS_FROM_SLOPE),),
    "loss": (Remedy(Action.CHECK_LOSS_FUNCTION),),
    "elsewhere": (Remedy(Action.CHECK_TENSOR_OF_SCRIPT),),
}
"""Where only the source is known."""
_MASK = (Remedy(Action.KEEP_ONE_KEY), Remedy(Action.MASK_WITH_FINITE_VALUE))
_LOGARITHM = (Remedy(Action.KEEP_LOGARITHM_ABOVE_ZERO), Remedy(Action.USE_LOG_SOFTMAX))
_ROOT = (Remedy(Action.KEEP_ROOT_ABOVE_ZERO),)
_DIVISION = (Remedy(Action.KEEP_DIVISOR_FROM_ZERO),)
_POWER = (Remedy(Action.KEEP_BASE_ABOVE_ZERO),)
_ENDS = (Remedy(Action.CLAMP_BELOW_RANGE),)
_EXPONENTIAL = (Remedy(Action.SUBTRACT_MAXIMUM),)
_TARGETS = (Remedy(Action.SKIP_EMPTY_BATCHES),)
_EPS = (Remedy(Action.RAISE_EPS_OF_NORM),)
_SPREAD = (Remedy(Action.COMPUTE_SPREAD_OF_SEVERAL),)
_OF: dict[str, tuple[Remedy, ...]] = {
    **dict.fromkeys(("log", "log10", "log2", "xlogy", "binary_cross_entropy"), _LOGARITHM),
    **dict.fromkeys(("sqrt", "norm", "linalg_vector_norm", "cdist", "cdist_forward"), _ROOT),
    **dict.fromkeys(("div", "divide", "true_divide", "addcdiv", "reciprocal", "rsqrt"), _DIVISION),
    **dict.fromkeys(("acos", "acosh", "asin", "atanh", "erfinv", "log1p", "logit", "special_logit"), _ENDS),
    **dict.fromkeys(("exp", "exp2", "expm1", "cosh", "sinh"), _EXPONENTIAL),
    **dict.fromkeys(("nll_loss", "nll_loss2d", "nll_loss_forward", "nll_loss2d_forward", "mean"), _TARGETS),
    **dict.fromkeys(("std", "var", "std_mean", "var_mean"), _SPREAD),
    **dict.fromkeys(("batch_norm", "group_norm", "layer_norm", "rms_norm", "fused_rms_norm"), _EPS),
    "pow": _POWER,
}


def remedies_against(origin: NanOrigin) -> tuple[Remedy, ...]:
    if origin.source == "loss" and origin.name == "hook":
        return (Remedy(Action.CHECK_HOOK_OF_OUTPUT), Remedy(Action.LOWER_LOSS_SCALE), *REMEDIES["loss"])
    names = origin.operation.split(", ") if origin.source in ("forward", "backward", "loss") else []
    if overflowed(origin):
        if _OF.get(names[0]) == _EXPONENTIAL:
            return _EXPONENTIAL
        if origin.output is None or origin.output.dtype != "float16":
            return (Remedy(Action.SCALE_DOWN_AND_FIND_SOURCE),)
        if origin.source == "backward":
            return (Remedy(Action.LOWER_LOSS_SCALE), Remedy(Action.TRAIN_IN_BF16))
        return (Remedy(Action.TRAIN_IN_BF16), Remedy(Action.SCALE_DOWN_OR_FLOAT32))
    has_softmax = any("softmax" in name or name.startswith("scaled_dot_product") for name in names)
    if has_softmax and any(facts.inf for facts in origin.inputs):
        return _MASK
    remedies = tuple(dict.fromkeys(remedy for name in names for remedy in _OF.get(name, ())))
    return remedies or REMEDIES[origin.source]


KIND = "nan_origin"


def origin_event(step: int, origin: NanOrigin, layer: str) -> Finding:
    """Return the finding; `layer` is the module's name in the recording."""
    traced = origin.source in ("forward", "backward") and origin.output is not None
    facts = NanOriginFacts(
        NanSource(origin.source),
        layer,
        tuple(name for name in origin.operation.split(", ") if name),
        origin.line,
        origin.name,
        origin.inputs,
        origin.output,
        origin.nan_by,
        overflowed(origin) if traced else None,
    )
    return Finding.at(facts, step, Severity.INFO, place=layer, remedies=remedies_against(origin))
