"""What the heads of an attention look at: how widely, and how large their scores are.

In: scores, a block at a time. Out: for each head the entropy of its weights, as a share of what it could be at most,
and its largest score; and the weights of the first tokens. Guarantees: each number is exact for the rows that it is
made of, without the table of all weights ever being there: a block has at most `BLOCK` scores, whatever the length.

The entropy of a row is log Z - E[score - max], with Z and the expectation summed up over blocks of keys as in
Milakov and Gimelshein, Online normalizer calculation for softmax (arXiv:1805.02867). A row is a share of the logarithm
of the number of keys that it may look at; rows that may look at one key or none are left out. All rows count up to
`MOST` scores; of more, samples at even distances do, and of a single sample queries at even distances.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from mlflow_stability.probes.attention.attention_scores import Scores

BLOCK = 2**21
"""How many scores are held at once on an accelerator: three tensors of 8 MB."""
BLOCK_ON_CPU = 2**18
"""On a CPU: what its caches hold is several times as fast."""
MOST = 2**26
"""How many scores of one attention are looked at."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Sums over the keys of some rows: by sample, head and query."""

    largest: Tensor
    """The largest score, minus infinity in a row that may look at nothing."""
    total: Tensor
    """The sum of exp(score - largest), ..."""
    moment: Tensor
    """... of the same times (score - largest)."""
    keys: Tensor
    """How many keys the row may look at."""

    def entropy(self) -> Tensor:
        """Of the weights, in nats."""
        return self.total.log() - self.moment / self.total

    def log_total(self) -> Tensor:
        """The logarithm of the sum of exp(score)."""
        return self.largest + self.total.log()


def head_numbers(scores: Scores, most: int = MOST) -> Tensor:
    """Two rows: entropy as a share of the largest possible one, and the largest score; a column for each head."""
    _, heads, _, _ = scores.shape
    sums: Tensor | None = None
    largest: Tensor | None = None
    for samples, queries in _blocks_of_rows(scores, most):
        rows = rows_of(scores, samples, queries)
        several = rows.keys > 1
        share = torch.where(several, rows.entropy() / rows.keys.clamp_min(2).log(), 0)
        found = torch.stack((share, several.to(share.dtype)))
        found = found.transpose(1, 2).reshape(2, heads, -1).sum(-1)
        peak = rows.largest.transpose(0, 1).reshape(heads, -1).amax(-1)
        sums = found if sums is None else sums + found
        largest = peak if largest is None else torch.maximum(largest, peak)
    if sums is None or largest is None:
        raise ValueError(f"scores of shape {scores.shape} have zero rows")
    return torch.stack((sums[0] / sums[1], largest))


def first_weights(scores: Scores, tokens: int) -> Tensor:
    """The weights of the first tokens of the first sample, by head, query and key: shares of all keys there are."""
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
    """The sums over all keys of these rows."""
    _, heads, _, keys = scores.shape
    rows = heads * len(range(*samples.indices(scores.shape[0]))) * len(range(*queries.indices(scores.shape[2])))
    at_once = max(1, _block(scores) // rows)
    found: Rows | None = None
    for begin in range(0, keys, at_once):
        part = _sums(scores.block(samples, queries, slice(begin, begin + at_once)))
        found = part if found is None else _together(found, part)
    if found is None:
        raise ValueError(f"scores of shape {scores.shape} have zero keys")
    return found


def _sums(block: Tensor) -> Rows:
    """Uses the block up."""
    largest = block.amax(-1)
    keys = (block != -torch.inf).sum(-1, dtype=block.dtype)
    block -= _finite(largest)[..., None]
    parts = block.exp()
    total = parts.sum(-1)
    block.masked_fill_(parts == 0, 0)  # nothing times minus infinity is to be nothing
    return Rows(largest, total, parts.mul_(block).sum(-1), keys)


def _together(one: Rows, other: Rows) -> Rows:
    largest = torch.maximum(one.largest, other.largest)
    total, moment = torch.zeros_like(largest), torch.zeros_like(largest)
    for each in (one, other):
        lower = each.largest - _finite(largest)
        factor = lower.exp()
        total += each.total * factor
        moment += torch.where(factor == 0, 0, factor * (each.moment + lower * each.total))
    return Rows(largest, total, moment, one.keys + other.keys)


def _finite(largest: Tensor) -> Tensor:
    """Zero for rows that may look at nothing."""
    return largest.masked_fill(largest == -torch.inf, 0)


def _blocks_of_rows(scores: Scores, most: int) -> Iterator[tuple[slice, slice]]:
    """Parts of all rows, or of rows at even distances where there are too many."""
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
