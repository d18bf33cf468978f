"""Scores of attention that torch or a model computes without `scaled_dot_product_attention`.

`nn.MultiheadAttention`: queries and keys are projected again, for its own are inside one function of torch. A model's
own softmax is an attention if its result, after dropout or a mask, is summed over the keys with values that do not
depend on the query: a classifier, a router of experts or a loss is not taken for one. Flex attention: scores as its
`score_mod` and `mask_mod` make them, a block at a time. Nothing of the script is kept alive.
"""

from __future__ import annotations

import inspect
import math
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from mlflow_stability.probes.hooks import torch_api
from mlflow_stability.probes.hooks.thread_state import is_measurable
from mlflow_stability.probes.inside.attention_scores import BLOCK, ProductScores, Shape, in_wide, rows_of

_FUNCTION = inspect.signature(functional.multi_head_attention_forward)


def scores_of_function(args: tuple[Any, ...], kwargs: dict[str, Any]) -> ProductScores:
    bound = _FUNCTION.bind(*args, **kwargs)
    bound.apply_defaults()
    return _scores(bound.arguments)


def _scores(call: dict[str, Any]) -> ProductScores:
    query, key = call["query"], call["key"]
    padding, mask = call["key_padding_mask"], call["attn_mask"]
    if query.dim() == 2:
        query, key = query[:, None], key[:, None]
        padding = None if padding is None else padding[None]
    heads = call["num_heads"]
    queries, samples, width = query.shape
    weight_of_query, weight_of_key, bias_of_query, bias_of_key = _weights(call, width)
    query = _projected(query, weight_of_query, bias_of_query)
    key = _projected(key, weight_of_key, bias_of_key)
    masks, diagonal = [], None
    if call["is_causal"] and padding is None and not call["need_weights"]:
        diagonal = 0  # with this hint torch ignores the mask itself
    elif mask is not None:
        mask = mask.view(1 if mask.dim() == 2 else samples, -1, queries, key.shape[0])
        masks.append(_inverted(mask))
    if padding is not None:
        masks.append(_inverted(padding.view(samples, 1, 1, key.shape[0])))
    if call["bias_k"] is not None:
        key = torch.cat((key, in_wide(call["bias_k"]).expand(1, samples, width)))
        masks = [_with_one_more(mask) for mask in masks]
    key = _by_head(key, heads) if call["static_k"] is None else call["static_k"].unflatten(0, (samples, heads))
    if call["add_zero_attn"]:
        key = functional.pad(key, (0, 0, 0, 1))
        masks = [_with_one_more(mask) for mask in masks]
    return ProductScores(_by_head(query, heads), key, 1 / math.sqrt(width // heads), masks, diagonal)


def _weights(call: dict[str, Any], width: int) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    bias = call["in_proj_bias"]
    biases = (None, None) if bias is None else (bias[:width], bias[width : 2 * width])
    if call["use_separate_proj_weight"]:
        return call["q_proj_weight"], call["k_proj_weight"], *biases
    weight = call["in_proj_weight"]
    return weight[:width], weight[width : 2 * width], *biases


def _projected(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return functional.linear(in_wide(inputs), in_wide(weight), None if bias is None else in_wide(bias))


# From place, sample, feature to sample, head, place, feature.
def _by_head(tensor: Tensor, heads: int) -> Tensor:
    return tensor.view(*tensor.shape[:2], heads, -1).permute(1, 2, 0, 3)


# A true value forbids here; in `ProductScores` it allows.
def _inverted(mask: Tensor) -> Tensor:
    return ~mask if mask.dtype is torch.bool else mask


def _with_one_more(mask: Tensor) -> Tensor:
    return functional.pad(mask, (0, 1), value=1 if mask.dtype is torch.bool else 0)


SOFTMAX = frozenset({functional.softmax, torch.softmax, Tensor.softmax, torch.special.softmax})
PRODUCTS = frozenset(
    {torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.bmm, Tensor.bmm, torch.einsum, functional.linear}
)
MAX_CANDIDATES = 2  # results of a softmax that are followed at a time
MANY_KEYS = 4096  # more, and four times as many as queries, are classes


@dataclass(slots=True, eq=False)  # fields are tensors, which `==` compares value by value
class Candidate:
    """Weights that were not multiplied with values yet."""

    measured: Any  # what was measured of the scores
    queries: int
    keys: int
    tensors: list[weakref.ref[Tensor]] = field(default_factory=list)  # tensors that hold these weights

    def holds(self, value: object) -> bool:
        return any(tensor() is value for tensor in self.tensors)


class SoftmaxTrail:
    """Follows the results of softmax functions through one forward pass."""

    def __init__(self) -> None:
        self._waiting: deque[Candidate] = deque(maxlen=MAX_CANDIDATES)

    @property
    def waiting(self) -> bool:
        return bool(self._waiting)

    def follow(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Tensor) -> Any:
        """Look at a call of a function; return what was measured at a softmax that it shows to be an attention."""
        if func in PRODUCTS:
            return self._multiplied(func, args, kwargs)
        for candidate in self._waiting:
            if any(
                candidate.holds(argument) for argument in (*args[:3], *kwargs.values()) if isinstance(argument, Tensor)
            ):
                first = candidate.tensors[0]()
                weights = candidate.tensors[-1]() if first is None else first
                if weights is not None and result.numel() == weights.numel():
                    candidate.tensors.append(weakref.ref(result))
                return None
        return None

    def begin(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any, look: Callable[[Tensor], Any]) -> None:
        """Have the scores of a softmax measured with `look`, if it may be that of an attention."""
        scores = scores_in_softmax(args, kwargs)
        if scores is not None and is_measurable(result) and result.shape == scores.shape:
            candidate = Candidate(look(scores), scores.shape[-2], scores.shape[-1])
            candidate.tensors.append(weakref.ref(result))
            self._waiting.append(candidate)

    def _multiplied(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        equation, operands = "", [*args, *kwargs.values()]
        if func is torch.einsum:
            equation = args[0] if args and isinstance(args[0], str) else "?"
            operands = list(args[1]) if len(args) == 2 and isinstance(args[1], (list, tuple)) else list(args[1:])
        tensors = [operand for operand in operands if isinstance(operand, Tensor)]
        if len(tensors) != 2:
            return None
        for candidate in self._waiting:
            for at, other in ((0, 1), (1, 0)):
                if candidate.holds(tensors[at]) and _sums_over_keys(candidate, tensors, at, other, equation):
                    self._waiting.remove(candidate)
                    return candidate.measured
        return None


def scores_in_softmax(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """Return the scores of a softmax that may be that of an attention, or None."""
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


_LN_2 = 0.6931471805599453


@dataclass(frozen=True, slots=True)
class FlexScores:
    """Products of queries and keys that functions of the script change and mask."""

    products: ProductScores
    score_mod: Callable[..., Tensor]  # takes a score, its sample, head, query and key
    mask_mod: Callable[..., Tensor]  # takes sample, head, query and key; returns whether the query may look there

    @property
    def shape(self) -> Shape:
        return self.products.shape

    @property
    def device(self) -> torch.device:
        return self.products.device

    def block(self, samples: slice, queries: slice, keys: slice) -> Tensor:
        scores = self.products.block(samples, queries, keys)
        parts = zip(self.shape, (samples, slice(None), queries, keys), strict=True)
        places = [torch.arange(size, device=self.device)[part] for size, part in parts]
        # Lets functions index into tensors that they capture.
        with torch_api.enable_torch_function(), torch_api.TransformGetItemToIndex():
            changed = _of_all(self.score_mod, 1)(scores, *places)
            allowed = _of_all(self.mask_mod, 0)(*places)
        return torch.where(allowed, in_wide(changed), -torch.inf)


def scores_of_flex(args: tuple[Any, ...], rounded_to: torch.dtype | None) -> FlexScores:
    query, key, _, score_mod, block_mask, scale, _, *others = args
    of_score, of_mask = (*others, (), ())[:2]
    key = key.expand(len(query), -1, -1, -1)
    mask_mod = block_mask[-1]
    return FlexScores(
        ProductScores(query, key, scale, rounded_to=rounded_to),
        lambda score, *places: score_mod(score, *places, *of_score),
        lambda *places: mask_mod(*places, *of_mask),
    )


def output_of_flex(args: tuple[Any, ...], scores: FlexScores) -> tuple[Tensor, Tensor, Tensor]:
    """Return the kernel's output: mixed values, and by row log-sum and largest score in base two."""
    query, key, value = args[:3]
    samples, heads, queries, keys = scores.shape
    value = value.expand(samples, -1, -1, -1)
    shared = key.shape[1]
    at_once = max(1, BLOCK // (heads * keys))
    keys_at_once = min(keys, max(1, BLOCK // (heads * at_once)))
    dtype = scores.products.rounded_to or query.dtype
    mixed = query.new_empty((samples, heads, queries, value.shape[3]), dtype=dtype)
    totals, largest = (query.new_empty((samples, heads, queries), dtype=in_wide(query).dtype) for _ in range(2))
    for sample in range(samples):
        here = slice(sample, sample + 1)
        for begin in range(0, queries, at_once):
            some = slice(begin, min(begin + at_once, queries))
            rows = rows_of(scores, here, some)
            total = rows.log_total()
            out = torch.zeros((1, shared, 1, value.shape[3]), dtype=total.dtype, device=total.device)
            for first in range(0, keys, keys_at_once):
                part = slice(first, first + keys_at_once)
                weights = (scores.block(here, some, part) - total[..., None]).exp().nan_to_num_(0.0)
                grouped = weights.view(1, shared, -1, weights.shape[-1])
                out = out + grouped @ in_wide(value[here, :, part])
            mixed[here, :, some] = out.view(1, heads, -1, value.shape[3]).to(mixed.dtype)
            totals[here, :, some], largest[here, :, some] = total / _LN_2, rows.largest / _LN_2
    return mixed, totals, largest


# The function of single places, for all samples, heads, queries and keys at once.
def _of_all(function: Callable[..., Tensor], scores: int) -> Callable[..., Tensor]:
    for dim in (3, 2, 1, 0):
        places = [None] * 4
        places[dim] = 0  # type: ignore[call-overload]
        function = torch.vmap(function, in_dims=(*(0,) * scores, *places))
    return function
