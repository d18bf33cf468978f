"""The scores of a flex attention, and what it puts out, both a block at a time.

In: what `torch.nn.attention.flex_attention` passes to its kernel. Out: the scores as its `score_mod` and `mask_mod`
make them; and its output, for where it would be run without a compiler. Guarantees: the table of all scores, which
torch builds there, never is. Loaded only where a script uses flex attention: it needs torch's compiler.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mlflow_stability.probes.attention.attention_scores import ProductScores, Shape, in_wide
from mlflow_stability.probes.attention.attention_statistics import BLOCK, rows_of
from mlflow_stability.probes.hooks import torch_api

_LN_2 = 0.6931471805599453


@dataclass(frozen=True, slots=True)
class FlexScores:
    """Products of queries and keys that functions of the script have changed and masked."""

    products: ProductScores
    score_mod: Callable[..., Tensor]
    """Of a score, its sample, head, query and key; whatever else it takes is bound already."""
    mask_mod: Callable[..., Tensor]
    """Of a sample, head, query and key: whether the query may look there."""

    @property
    def shape(self) -> Shape:
        """Samples, heads, queries, keys."""
        return self.products.shape

    @property
    def device(self) -> torch.device:
        """Where they are."""
        return self.products.device

    def block(self, samples: slice, queries: slice, keys: slice) -> Tensor:
        """A new tensor of these scores for all heads."""
        scores = self.products.block(samples, queries, keys)
        parts = zip(self.shape, (samples, slice(None), queries, keys), strict=True)
        places = [torch.arange(size, device=self.device)[part] for size, part in parts]
        # A tensor that a function captures is looked up in by place: this mode of torch's own lets it do so.
        with torch_api.enable_torch_function(), torch_api.TransformGetItemToIndex():
            changed = _of_all(self.score_mod, 1)(scores, *places)
            allowed = _of_all(self.mask_mod, 0)(*places)
        return torch.where(allowed, in_wide(changed), -torch.inf)


def scores_of_flex(args: tuple[Any, ...], rounded_to: torch.dtype | None) -> FlexScores:
    """The scores of a call of the kernel; `rounded_to`: what autocast makes of its inputs."""
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
    """What the kernel gives: the mixed values, and logarithm of the sum and largest score of each row, in base two."""
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
        one = slice(sample, sample + 1)
        for begin in range(0, queries, at_once):
            some = slice(begin, min(begin + at_once, queries))
            rows = rows_of(scores, one, some)
            total = rows.log_total()
            out = torch.zeros((1, shared, 1, value.shape[3]), dtype=total.dtype, device=total.device)
            for first in range(0, keys, keys_at_once):
                part = slice(first, first + keys_at_once)
                weights = (scores.block(one, some, part) - total[..., None]).exp().nan_to_num_(0.0)
                grouped = weights.view(1, shared, -1, weights.shape[-1])
                out = out + grouped @ in_wide(value[one, :, part])
            mixed[one, :, some] = out.view(1, heads, -1, value.shape[3]).to(mixed.dtype)
            totals[one, :, some], largest[one, :, some] = total / _LN_2, rows.largest / _LN_2
    return mixed, totals, largest


def _of_all(function: Callable[..., Tensor], scores: int) -> Callable[..., Tensor]:
    """The function of single places, for all samples, heads, queries and keys at once."""
    for dim in (3, 2, 1, 0):
        places = [None] * 4
        places[dim] = 0  # type: ignore[call-overload]
        function = torch.vmap(function, in_dims=(*(0,) * scores, *places))
    return function
