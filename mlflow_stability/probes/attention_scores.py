"""The scores of an attention before its softmax, a block at a time, so that nobody has to hold all of them.

In: queries and keys with their masks, or scores that a model computed itself. Out: any block of scores in single
precision (double where the model computes in double), minus infinity where a query may not look at a key. Promised:
what was given is read and never changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

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
class GivenScores:
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
