"""Attention scores before the softmax, computed block by block, and statistics of the heads.

Blocks are scores by sample, head, query and key in single precision (double where the model computes in double), -inf
where masked. Guarantees: arguments are read and never changed; the full matrix is never made: a block has at most
`BLOCK` scores.

The entropy of a row is log Z - E[score - max], with Z and the expectation summed over blocks of keys as in Milakov and
Gimelshein, Online normalizer calculation for softmax (arXiv:1805.02867), as a share of the logarithm of the number of
keys that it may look at. All rows count up to `MAX_SCORES`; of more, samples at even distances do, and of a single
sample queries.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import Module

from mlflow_stability.probes.hooks.thread_state import is_measurable

MASKED = -5000.0  # largest bias that is a mask: scripts add -10,000, -1e9 or the smallest number

Shape = tuple[int, int, int, int]


class Scores(Protocol):
    @property
    def shape(self) -> Shape: ...

    @property
    def device(self) -> torch.device: ...

    def block(self, samples: slice, queries: slice, keys: slice) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class ProductScores:
    query: Tensor  # by sample, head, place and feature
    key: Tensor  # the same; with fewer heads where several heads of queries share one
    scale: float
    masks: Sequence[Tensor] = ()
    """Of four dimensions, of size one where shared: true where a query may look, or what is added."""
    diagonal: int | None = None  # number of places behind its own at which a query may look at keys; None: at all keys
    rounded_to: torch.dtype | None = None  # type to which the attention rounds its inputs; None: it does not

    @property
    def shape(self) -> Shape:
        samples, heads, queries, _ = self.query.shape
        return samples, heads, queries, self.key.shape[2]

    @property
    def device(self) -> torch.device:
        return self.query.device

    def block(self, samples: slice, queries: slice, keys: slice) -> Tensor:
        query, key = self._wide(self.query[samples, :, queries]), self._wide(self.key[samples, :, keys])
        heads, shared = query.shape[1], key.shape[1]
        grouped = (query * self.scale).reshape(len(query), shared, heads // shared * query.shape[2], query.shape[3])
        scores = (grouped @ key.transpose(2, 3)).view(len(query), heads, query.shape[2], key.shape[2])
        for mask in self.masks:
            part = _part(mask, samples, queries, keys)
            if part.dtype is torch.bool:
                scores.masked_fill_(~part, -torch.inf)
            else:
                scores += part.to(scores.dtype)
                scores.masked_fill_(part <= MASKED, -torch.inf)
        if self.diagonal is not None:
            _, _, all_queries, all_keys = self.shape
            places = torch.arange(all_queries, device=self.device)[queries]
            others = torch.arange(all_keys, device=self.device)[keys]
            scores.masked_fill_(others > places[:, None] + self.diagonal, -torch.inf)
        return scores

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
        samples, heads, queries, keys = self.scores.shape
        return samples, heads, queries, keys

    @property
    def device(self) -> torch.device:
        return self.scores.device

    def block(self, samples: slice, queries: slice, keys: slice) -> Tensor:
        part = in_wide(self.scores[samples, :, queries, keys])
        return part.masked_fill(part <= MASKED, -torch.inf)


def in_wide(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype is torch.float64 else tensor.to(torch.float32)


def _part(mask: Tensor, samples: slice, queries: slice, keys: slice) -> Tensor:
    places = (samples, slice(None), queries, keys)
    return mask[tuple(slice(None) if size == 1 else part for size, part in zip(mask.shape, places, strict=True))]


# Attributes of modules with the number of their heads.
_HEADS = ("num_heads", "n_heads", "n_head", "num_attention_heads", "nhead", "heads")


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
    """Return the scores of a call of `scaled_dot_product_attention`, or None if its layout is unknown.

    `heads` is what the module says; `rounded_to` is the type of autocast.
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
    lead = tuple(max(sizes) for sizes in zip(*(_lead(mask, dims) for mask in (query, key, *masks)), strict=True))
    if dims == 3 and not (heads > 1 and all(_lead(tensor, 3) == (lead[0],) for tensor in (query, key))):
        heads = 1
    query, key = (_as_four(tensor, lead, heads) for tensor in (query, key))
    query = query.expand(-1, max(query.shape[1], key.shape[1]), -1, -1)
    masks = [_as_four(mask, lead, heads, mask=True) for mask in masks]
    if scale is None:
        scale = 1 / math.sqrt(query.shape[-1])
    return ProductScores(query, key, scale, masks, diagonal, rounded_to)


def scores_of_softmax(heads: int, scores: Tensor) -> ScriptScores:
    lead = tuple(scores.shape[:-2])
    return ScriptScores(_as_four(scores, lead, heads if scores.dim() == 3 else 1))


def heads_of(modules: Sequence[Module], rows: int) -> int:
    """Return the number of heads that the innermost of these modules states, if it fits; else 1."""
    for module in modules:
        for name in _HEADS:
            heads = getattr(module, name, None)
            if type(heads) is int and heads > 1 and rows % heads == 0:
                return heads
    return 1


def _lead(tensor: Tensor, dims: int) -> tuple[int, ...]:
    shape = (1,) * (dims - tensor.dim()) + tuple(tensor.shape)
    return shape[:-2]


# Sample, head and the last two dimensions. Masks keep a dimension of one that all share.
def _as_four(tensor: Tensor, lead: tuple[int, ...], heads: int, *, mask: bool = False) -> Tensor:
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


BLOCK = 2**21  # scores held at once on an accelerator: three tensors of 8 MB
BLOCK_ON_CPU = 2**18  # what fits into caches is several times as fast
MAX_SCORES = 2**26  # of one attention


@dataclass(frozen=True, slots=True)
class Rows:
    """Sums over the keys of some rows: by sample, head and query."""

    largest: Tensor  # largest score; -inf in a row that may look at nothing
    total: Tensor  # sum of exp(score - largest)
    moment: Tensor  # sum of exp(score - largest) * (score - largest)
    keys: Tensor  # number of keys that the row may look at

    def entropy(self) -> Tensor:
        return self.total.log() - self.moment / self.total

    def log_total(self) -> Tensor:
        return self.largest + self.total.log()


def head_numbers(scores: Scores, most: int = MAX_SCORES) -> Tensor:
    """Return two rows: entropy as a share of its maximum, and the largest score; a column for each head."""
    _, heads, _, _ = scores.shape
    sums: Tensor | None = None
    largest: Tensor | None = None
    for samples, queries in _blocks_of_rows(scores, most):
        rows = rows_of(scores, samples, queries)
        several = rows.keys > 1
        share = torch.where(several, rows.entropy() / rows.keys.clamp_min(2).log(), 0)
        part = torch.stack((share, several.to(share.dtype)))
        part = part.transpose(1, 2).reshape(2, heads, -1).sum(-1)
        peak = rows.largest.transpose(0, 1).reshape(heads, -1).amax(-1)
        sums = part if sums is None else sums + part
        largest = peak if largest is None else torch.maximum(largest, peak)
    if sums is None or largest is None:
        raise ValueError(f"scores of shape {scores.shape} have zero rows")
    return torch.stack((sums[0] / sums[1], largest))


def first_weights(scores: Scores, tokens: int) -> Tensor:
    """Return the weights of the first tokens of the first sample, by head, query and key, as shares of all keys."""
    _, heads, queries, keys = scores.shape
    first, most = slice(0, 1), _block(scores)
    at_once = max(1, most // (heads * keys))
    parts = []
    for begin in range(0, min(tokens, queries), at_once):
        some = slice(begin, min(begin + at_once, tokens, queries))
        totals = rows_of(scores, first, some).log_total()[0, :, :, None]
        weights = (scores.block(first, some, slice(0, tokens))[0] - totals).exp()
        parts.append(torch.where(totals == -torch.inf, 0, weights))
    return torch.cat(parts, 1)


def rows_of(scores: Scores, samples: slice, queries: slice) -> Rows:
    """Return sums over all keys of these rows."""
    _, heads, _, keys = scores.shape
    rows = heads * len(range(*samples.indices(scores.shape[0]))) * len(range(*queries.indices(scores.shape[2])))
    at_once = max(1, _block(scores) // rows)
    sums: Rows | None = None
    for begin in range(0, keys, at_once):
        part = _sums(scores.block(samples, queries, slice(begin, begin + at_once)))
        sums = part if sums is None else _together(sums, part)
    if sums is None:
        raise ValueError(f"scores of shape {scores.shape} have zero keys")
    return sums


# Overwrites the block.
def _sums(block: Tensor) -> Rows:
    largest = block.amax(-1)
    keys = (block != -torch.inf).sum(-1, dtype=block.dtype)
    block -= _finite(largest)[..., None]
    parts = block.exp()
    total = parts.sum(-1)
    block.masked_fill_(parts == 0, 0)  # 0 * -inf is NaN
    return Rows(largest, total, parts.mul_(block).sum(-1), keys)


def _together(left: Rows, right: Rows) -> Rows:
    largest = torch.maximum(left.largest, right.largest)
    total, moment = torch.zeros_like(largest), torch.zeros_like(largest)
    for rows in (left, right):
        lower = rows.largest - _finite(largest)
        factor = lower.exp()
        total += rows.total * factor
        moment += torch.where(factor == 0, 0, factor * (rows.moment + lower * rows.total))
    return Rows(largest, total, moment, left.keys + right.keys)


# Zero for rows that may look at nothing.
def _finite(largest: Tensor) -> Tensor:
    return largest.masked_fill(largest == -torch.inf, 0)


def _blocks_of_rows(scores: Scores, most: int) -> Iterator[tuple[slice, slice]]:
    samples, heads, queries, keys = scores.shape
    of_sample = heads * queries * keys
    step = -(-samples // min(samples, max(1, most // of_sample)))
    stride = max(1, -(-of_sample // most))
    block = _block(scores)
    many = max(1, block // -(-of_sample // stride))
    rows = max(1, block // (heads * keys))
    for first in range(0, samples, step * many):
        for begin in range(0, queries, stride * rows):
            end = min(begin + stride * rows, queries)
            yield slice(first, min(first + step * many, samples), step), slice(begin, end, stride)


def _block(scores: Scores) -> int:
    return BLOCK_ON_CPU if scores.device.type == "cpu" else BLOCK
