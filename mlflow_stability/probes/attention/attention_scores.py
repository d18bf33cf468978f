"""Attention scores before the softmax, computed block by block.

In: the arguments of `scaled_dot_product_attention`, or scores that went through a softmax. Out: any block of scores
as sample, head, query, key in single precision (double where the model computes in double), -inf where masked; None
where the layout is unknown. Guarantees: arguments are read and never changed; the full matrix is never made.

Three dimensions are samples and heads in one where the module says how many heads it has; otherwise they are samples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import Module

from mlflow_stability.probes.hooks.untracked_ops import is_measurable

MASKED = -5000.0
"""A bias of so little, or less, is a mask: scripts add -10,000, -1e9 or the smallest number there is."""

Shape = tuple[int, int, int, int]


class Scores(Protocol):
    """Scores of one attention."""

    @property
    def shape(self) -> Shape:
        """Samples, heads, queries, keys."""
        ...

    @property
    def device(self) -> torch.device:
        """Where they are."""
        ...

    def block(self, samples: slice, queries: slice, keys: slice) -> Tensor:
        """A new tensor of these scores for all heads."""
        ...


@dataclass(frozen=True, slots=True)
class ProductScores:
    """Products of queries and keys."""

    query: Tensor
    """By sample, head, place and feature."""
    key: Tensor
    """Likewise; with fewer heads where several heads of queries share one."""
    scale: float
    masks: Sequence[Tensor] = ()
    """Of four dimensions each, of one where all share it: true where a query may look, or what is added."""
    diagonal: int | None = None
    """A query may look at keys up to so many places behind its own; None: at all."""
    rounded_to: torch.dtype | None = None
    """What the attention rounds its inputs to before it begins; None: it takes them as they are."""

    @property
    def shape(self) -> Shape:
        """Samples, heads, queries, keys."""
        samples, heads, queries, _ = self.query.shape
        return samples, heads, queries, self.key.shape[2]

    @property
    def device(self) -> torch.device:
        """Where they are."""
        return self.query.device

    def block(self, samples: slice, queries: slice, keys: slice) -> Tensor:
        """A new tensor of these scores for all heads."""
        query, key = self._wide(self.query[samples, :, queries]), self._wide(self.key[samples, :, keys])
        heads, shared = query.shape[1], key.shape[1]
        grouped = (query * self.scale).reshape(len(query), shared, heads // shared * query.shape[2], query.shape[3])
        found = (grouped @ key.transpose(2, 3)).view(len(query), heads, query.shape[2], key.shape[2])
        for mask in self.masks:
            part = _part(mask, samples, queries, keys)
            if part.dtype is torch.bool:
                found.masked_fill_(~part, -torch.inf)
            else:
                found += part.to(found.dtype)
                found.masked_fill_(part <= MASKED, -torch.inf)
        if self.diagonal is not None:
            _, _, all_queries, all_keys = self.shape
            places = torch.arange(all_queries, device=self.device)[queries]
            others = torch.arange(all_keys, device=self.device)[keys]
            found.masked_fill_(others > places[:, None] + self.diagonal, -torch.inf)
        return found

    def _wide(self, tensor: Tensor) -> Tensor:
        if self.rounded_to is not None and tensor.dtype is not torch.float64:
            tensor = tensor.to(self.rounded_to)
        return in_wide(tensor)


@dataclass(frozen=True, slots=True)
class ScriptScores:
    """Scores that a model computed itself, masks included."""

    scores: Tensor

    @property
    def shape(self) -> Shape:
        """Samples, heads, queries, keys."""
        samples, heads, queries, keys = self.scores.shape
        return samples, heads, queries, keys

    @property
    def device(self) -> torch.device:
        """Where they are."""
        return self.scores.device

    def block(self, samples: slice, queries: slice, keys: slice) -> Tensor:
        """A new tensor of these scores for all heads."""
        part = in_wide(self.scores[samples, :, queries, keys])
        return part.masked_fill(part <= MASKED, -torch.inf)


def in_wide(tensor: Tensor) -> Tensor:
    """The tensor in single precision, in double where it is double already."""
    return tensor if tensor.dtype is torch.float64 else tensor.to(torch.float32)


def _part(mask: Tensor, samples: slice, queries: slice, keys: slice) -> Tensor:
    """The block of a mask; a dimension of one stays as it is."""
    places = (samples, slice(None), queries, keys)
    return mask[tuple(slice(None) if size == 1 else each for size, each in zip(mask.shape, places, strict=True))]


_HEADS = ("num_heads", "n_heads", "n_head", "num_attention_heads", "nhead", "heads")
"""What modules call the number of their heads."""


def scores_of_call(
    heads: int,
    rounded_to: torch.dtype | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> ProductScores | None:
    """The scores of `scaled_dot_product_attention`, of the same arguments; `heads`: what the module says.

    `rounded_to`: what autocast makes of the inputs.
    """
    del value, dropout_p, enable_gqa
    if not (_is_plain(query) and _is_plain(key)) or min(query.dim(), key.dim()) < 2:
        return None
    dims = max(query.dim(), key.dim(), 3)
    diagonal, masks = 0 if is_causal else None, []
    if type(attn_mask).__name__ == "CausalBias":
        lower_right = attn_mask.variant.name == "LOWER_RIGHT"
        diagonal = key.shape[-2] - query.shape[-2] if lower_right else 0
    elif attn_mask is not None:
        if not _is_plain(attn_mask):
            return None
        dims = max(dims, attn_mask.dim())
        masks.append(attn_mask)
    lead = tuple(max(sizes) for sizes in zip(*(_lead(each, dims) for each in (query, key, *masks)), strict=True))
    if dims == 3 and not (heads > 1 and all(_lead(each, 3) == (lead[0],) for each in (query, key))):
        heads = 1
    query, key = (_four(each, lead, heads) for each in (query, key))
    query = query.expand(-1, max(query.shape[1], key.shape[1]), -1, -1)
    masks = [_four(each, lead, heads, mask=True) for each in masks]
    if scale is None:
        scale = 1 / math.sqrt(query.shape[-1])
    return ProductScores(query, key, scale, masks, diagonal, rounded_to)


def scores_of_softmax(heads: int, scores: Tensor) -> ScriptScores:
    """Scores of a model's own softmax."""
    lead = tuple(scores.shape[:-2])
    return ScriptScores(_four(scores, lead, heads if scores.dim() == 3 else 1))


def heads_of(modules: Sequence[Module], rows: int) -> int:
    """How many heads the innermost of these modules says it has, where that fits; else 1."""
    for module in modules:
        for name in _HEADS:
            heads = getattr(module, name, None)
            if type(heads) is int and heads > 1 and rows % heads == 0:
                return heads
    return 1


def _lead(tensor: Tensor, dims: int) -> tuple[int, ...]:
    """Its dimensions before the last two, as one of so many in all."""
    shape = (1,) * (dims - tensor.dim()) + tuple(tensor.shape)
    return shape[:-2]


def _four(tensor: Tensor, lead: tuple[int, ...], heads: int, *, mask: bool = False) -> Tensor:
    """The tensor as sample, head and its last two dimensions. Masks keep a dimension of one that all share."""
    own = _lead(tensor, len(lead) + 2)
    tensor = tensor.view(*own, *tensor.shape[-2:])
    if mask and all(size == 1 for size in own[:-1]) and (len(lead) > 1 or own == (1,)):
        return tensor.view(1, -1, *tensor.shape[-2:])
    if len(lead) == 1:
        tensor = tensor.expand(*lead, -1, -1)
        return tensor.reshape(-1, heads, *tensor.shape[1:]) if heads > 1 else tensor[:, None]
    tensor = tensor.expand(*lead[:-1], -1, -1, -1)
    return tensor if len(lead) == 2 else tensor.flatten(0, -4)


def _is_plain(value: object) -> bool:
    return is_measurable(value) and not value.is_nested
