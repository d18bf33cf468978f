"""Tells the softmax of an attention from any other: what comes out of it is multiplied with values.

In: calls of torch's functions, as they go by. Out: which softmax was an attention, once its weights meet the values.
Guarantees: a classifier, a router of experts or a loss is not taken for one: an attention is a softmax over the keys of
scores with three dimensions or more, whose result, after dropout or a mask, is summed up over those keys with values
that do not depend on the query. Nothing of the script is kept alive.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from mlflow_stability.probes.hooks.untracked_ops import is_measurable

SOFTMAX = frozenset({functional.softmax, torch.softmax, Tensor.softmax, torch.special.softmax})
PRODUCTS = frozenset(
    {torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.bmm, Tensor.bmm, torch.einsum, functional.linear}
)
MOST_WAITING = 2
"""How many results of a softmax are followed at a time."""
MANY_KEYS = 4096
"""With so many keys, and four times as many as queries, three dimensions are taken for a classifier's."""


@dataclass(slots=True)
class Candidate:
    """Weights that have not met any values yet."""

    found: Any
    """What was made of the scores when they were there."""
    queries: int
    keys: int
    tensors: list[weakref.ref[Tensor]] = field(default_factory=list)
    """What holds these weights now."""

    def holds(self, value: object) -> bool:
        """Whether a value is these weights."""
        return any(each() is value for each in self.tensors)


class SoftmaxTrail:
    """Follows the results of softmax functions through one forward pass."""

    def __init__(self) -> None:
        self._waiting: deque[Candidate] = deque(maxlen=MOST_WAITING)

    @property
    def waiting(self) -> bool:
        """Whether anything is followed."""
        return bool(self._waiting)

    def went_by(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Tensor) -> Any:
        """Look at a call that is no softmax; gives what was found at a softmax once it turns out an attention."""
        if func in PRODUCTS:
            return self._multiplied(func, args, kwargs)
        for candidate in self._waiting:
            if any(candidate.holds(each) for each in (*args[:3], *kwargs.values()) if isinstance(each, Tensor)):
                if result.numel() == _numel(candidate):
                    candidate.tensors.append(weakref.ref(result))
                return None
        return None

    def begins(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any, look: Callable[[Tensor], Any]) -> None:
        """A softmax was called: have its scores looked at, if it may be that of an attention."""
        scores = scores_of(args, kwargs)
        if scores is not None and is_measurable(result) and result.shape == scores.shape:
            candidate = Candidate(look(scores), scores.shape[-2], scores.shape[-1])
            candidate.tensors.append(weakref.ref(result))
            self._waiting.append(candidate)

    def _multiplied(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        equation, operands = "", [*args, *kwargs.values()]
        if func is torch.einsum:
            equation = args[0] if args and isinstance(args[0], str) else "?"
            operands = list(args[1]) if len(args) == 2 and isinstance(args[1], (list, tuple)) else list(args[1:])
        tensors = [each for each in operands if isinstance(each, Tensor)]
        if len(tensors) != 2:
            return None
        for candidate in self._waiting:
            for at, other in ((0, 1), (1, 0)):
                if candidate.holds(tensors[at]) and _sums_over_keys(candidate, tensors, at, other, equation):
                    self._waiting.remove(candidate)
                    return candidate.found
        return None


def scores_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """The scores of a softmax that may be that of an attention."""
    scores = args[0] if args else kwargs.get("input")
    dim = args[1] if len(args) > 1 else kwargs.get("dim")
    if not is_measurable(scores) or not scores.is_floating_point() or scores.dim() < 3:
        return None
    if dim not in (-1, scores.dim() - 1) or kwargs.get("out") is not None or scores.shape[-1] < 2:
        return None
    wide = scores.dim() == 3 and scores.shape[-1] > max(MANY_KEYS, 4 * scores.shape[-2])
    return None if wide else scores


def _sums_over_keys(candidate: Candidate, tensors: list[Tensor], at: int, other: int, equation: str) -> bool:
    weights, values = tensors[at], tensors[other]
    if values.dim() < 3 or weights.dim() < 3:
        return False
    size = candidate.queries, candidate.keys
    if equation:
        inputs, _, output = equation.replace(" ", "").replace("...", "").partition("->")
        terms = inputs.split(",")
        if len(terms) != 2 or len(terms[at]) < 2 or tuple(weights.shape[-2:]) != size:
            return False
        query, key = terms[at][-2], terms[at][-1]
        return key in terms[other] and key not in output and query not in terms[other] and query in output
    if at == 0:
        return tuple(weights.shape[-2:]) == size and values.shape[-2] == candidate.keys
    return tuple(weights.shape[-2:]) == size[::-1] and values.shape[-1] == candidate.keys


def _numel(candidate: Candidate) -> int:
    first = candidate.tensors[0]()
    last = candidate.tensors[-1]()
    known = first if first is not None else last
    return -1 if known is None else known.numel()
