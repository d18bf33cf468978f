"""Checks that narrow down an origin: optimizer, loss function, overflow.

In: a non-finite weight and the optimizers; the loss and the model's outputs; an origin. Out: whether the optimizer
wrote the weight; the operations of the script's loss function; whether inputs were too large for their type.
Guarantees: optimizers are tried on copies only, and only torch's own; the autograd graph is only read. Logarithm of
zero and division by zero are not overflows: no wider type fixes them.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from mlflow_stability.kinds.reported.nan_origin import TensorFacts
from mlflow_stability.probes.objects import state_of
from mlflow_stability.recovery.nan_origin.batch_facts import facts_of_tensor
from mlflow_stability.recovery.nan_origin.nan_trace import NanOrigin, is_finite, word_of

MOST_BYTES = 64 * 2**20
"""What an optimizer would do to a larger weight is not tried."""


def nonfinite_weight(
    name: str, stand_in: Tensor, optimizers: Sequence[Optimizer], parameter: Tensor | None = None
) -> NanOrigin:
    """Why this weight is not finite; `parameter` is the one that the optimizers know."""
    module, _, own = name.rpartition(".")
    facts = facts_of_tensor(name, stand_in)
    broken = NanOrigin("weight", module, own, name=name, output=facts)
    for optimizer in optimizers:
        group = _group_of(optimizer, parameter)
        if parameter is None or group is None:
            continue
        kind = type(optimizer).__name__
        for key, value in _numbers(state_of(optimizer).get(parameter, {})):
            if not is_finite(value):
                return NanOrigin(
                    "optimizer", module, kind, name=key, inputs=(facts_of_tensor(key, value),), output=facts
                )
        rate = torch.as_tensor(group.get("lr", 0.0), dtype=torch.float64)
        if not is_finite(rate.double()):
            return NanOrigin(
                "optimizer", module, kind, name="lr", inputs=(facts_of_tensor("lr", rate.double()),), output=facts
            )
        if _would_break(optimizer, group, parameter):
            return NanOrigin("optimizer", module, kind, name="update", output=facts)
    return broken


def _would_break(optimizer: Optimizer, group: dict[str, Any], parameter: Tensor) -> bool:
    """Whether a step from zero with a gradient of zero, from the state as it is, breaks numbers that are broken now."""
    kind = type(optimizer)
    step = getattr(kind.step, "__wrapped__", None)  # without the hooks that a step has, ours among them
    if step is None or not kind.__module__.startswith("torch.optim.") or kind.__name__ == "LBFGS":
        return False
    if parameter.nbytes > MOST_BYTES:
        return False
    known = optimizer.state.get(parameter, {})  # not by subscript, which would make an entry
    trial = torch.zeros_like(parameter, requires_grad=True)
    trial.grad = torch.zeros_like(parameter)
    copy = kind.__new__(kind)
    state = {key: value.clone() if isinstance(value, Tensor) else value for key, value in known.items()}
    copy.__dict__.update(optimizer.__dict__)
    copy.state = type(optimizer.state)(dict, {trial: state})
    copy.param_groups = [{**group, "params": [trial], "foreach": False, "fused": False}]
    step(copy)
    return bool((~trial.detach().isfinite() & ~parameter.detach().isfinite()).any())


def _group_of(optimizer: Optimizer, parameter: Tensor | None) -> dict[str, Any] | None:
    for group in optimizer.param_groups:
        if any(each is parameter for each in group["params"]):
            return dict(group)
    return None


def _numbers(state: dict[str, Any]) -> Iterator[tuple[str, Tensor]]:
    for key, value in state.items():
        if isinstance(value, Tensor) and value.is_floating_point():
            yield key, value


MOST_NODES = 4096
BREAKING = frozenset(
    {
        "acos", "acosh", "asin", "atanh", "binary_cross_entropy", "div", "exp", "expm1", "lgamma", "linalg_vector_norm",
        "log", "log10", "log1p", "log2", "logit", "nll_loss", "nll_loss2d", "norm", "pow", "prod", "reciprocal",
        "rsqrt", "sqrt", "std", "tan", "var", "xlogy",
    }
)  # fmt: skip
"""Operations that turn finite numbers into others without being anywhere near the end of what a type can hold. The
last step of a cross-entropy is among them: its mean over no targets at all is 0/0."""


def loss_operations(loss: Any, outputs: Sequence[tuple[str, int]]) -> tuple[str, ...]:
    """What was done to the outputs, from the node of the loss; empty where the graph does not lead to them."""
    ends = set(outputs)
    found: list[str] = []
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
        found.append(word_of(node.name()))
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                waiting.append(following)
    return tuple(dict.fromkeys(reversed(found))) if arrived else ()


def suspects(operations: Sequence[str]) -> tuple[str, ...]:
    """Those of them that can turn finite numbers into others."""
    return tuple(each for each in operations if each in BREAKING)


LARGEST = {"float16": 65504.0, "bfloat16": 3.3895e38, "float32": 3.4028e38, "float64": 1.7977e308}
"""The largest number of each type."""
ENDLESS = frozenset({"cosh", "exp", "exp2", "expm1", "linalg_vector_norm", "norm", "prod", "sinh", "std", "var"})
"""Finite for every number, and so infinite only where the result is too large."""
DIVIDING = frozenset({"addcdiv", "div", "divide", "true_divide"})
POLES = BREAKING - ENDLESS - DIVIDING - {"pow"}
"""Infinite, or not defined, at some number: the logarithm at zero."""
HIGHEST_POWER = 4
"""Numbers are raised to a power up to this; numbers whose power of that much is finite did not overflow."""


def overflowed(origin: NanOrigin) -> bool:
    """Whether large finite numbers went in, and what should have come out is larger than the type can hold."""
    made, name = origin.output, origin.operation
    limit = None if made is None else LARGEST.get(made.dtype)
    if made is None or limit is None or origin.source not in ("forward", "backward"):
        return False
    largest = _largest(origin.inputs)
    if made.nan:  # infinity minus infinity within one operation
        return name not in BREAKING and not any(each.inf for each in origin.inputs) and largest > math.sqrt(limit)
    if name in DIVIDING:
        by_zero = len(origin.inputs) > 1 and _meets_zero(origin.inputs[1])
        return not by_zero and _largest(origin.inputs[:1]) > math.sqrt(limit)
    if name == "pow":
        return largest > math.pow(limit, 1 / HIGHEST_POWER)
    return bool(made.inf) and name not in POLES


def _largest(several: Sequence[TensorFacts]) -> float:
    ends = [end for each in several for end in (each.least, each.greatest) if end is not None]
    return max(map(abs, ends), default=0.0)


def _meets_zero(facts: TensorFacts) -> bool:
    return facts.least is not None and facts.greatest is not None and facts.least <= 0.0 <= facts.greatest
