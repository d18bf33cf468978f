"""Clips gradients that stand out from the training's own: ZClip (arXiv 2504.02507).

In: the norm of an optimizer's gradients before its step. Out: the gradients, shortened where their norm stands out.
Guarantees: nobody waits for the device, and the mean and spread that norms are compared with take in what was let
through, never a norm that is not finite, nor one of zero: a step without reward says nothing of how large others are.

A norm z spreads above the mean, with z above the limit L, is shortened to mean + L²/z spreads: the further out, the
shorter. It is a clipper and no alarm: on heavy-tailed norms it shortens one step in thirty.
"""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.weak import WeakIdKeyDictionary

from mlflow_stability.recovery.easing.easing import clip_in_place


@dataclass(frozen=True, slots=True)
class ClipRule:
    """When a norm stands out, and what is done then."""

    limit: float = 2.5
    """From how many spreads above the mean on a norm is shortened."""
    memory: float = 0.97
    """How much of mean and spread is kept at each step."""
    warm_up: int = 25
    """From how many norms they are taken at first; nothing is clipped before that."""


class AdaptiveClip:
    """The norms of each optimizer so far."""

    def __init__(self, rule: ClipRule | None = None) -> None:
        self._rule = rule or ClipRule()
        self._known: MutableMapping[Optimizer, _Norms] = WeakIdKeyDictionary()

    def before_step(self, optimizer: Optimizer, gradients: Sequence[Tensor], norm: Tensor) -> Tensor | None:
        """Shorten the gradients if they stand out; gives the factor on the device, None while it warms up.

        Not for a step that is skipped.
        """
        norms = self._known.get(optimizer)
        if norms is None:
            norms = self._known[optimizer] = _Norms(self._rule, norm)
        if norms.seen < self._rule.warm_up:
            norms.warm(norm)
            return None
        return clip_in_place(gradients, norm, norms.largest(norm))

    def forget(self) -> None:
        """The training was rolled back: norms are compared with those to come."""
        self._known.clear()


class _Norms:
    """Mean and variance of the norms of one optimizer, on its device."""

    def __init__(self, rule: ClipRule, like: Tensor) -> None:
        self._rule = rule
        self.seen = 0
        self.mean = torch.zeros_like(like.detach())
        self.variance = torch.zeros_like(self.mean)
        self._counted = torch.zeros_like(self.mean)

    def warm(self, norm: Tensor) -> None:
        """Take in one of the first norms."""
        self.seen += 1
        with torch.no_grad():
            self._take(norm, norm)

    def largest(self, norm: Tensor) -> Tensor:
        """The norm that is let through; mean and variance take that one in."""
        limit = self._rule.limit
        with torch.no_grad():
            spread = self.variance.sqrt().clamp(min=1e-12)
            z = (norm - self.mean) / spread
            stands_out = (z > limit) & (self._counted >= self._rule.warm_up)
            largest = torch.where(stands_out, self.mean + limit * limit / z * spread, norm)
            self._take(norm, largest)
            return largest

    def _take(self, norm: Tensor, let_through: Tensor) -> None:
        """The first ones weigh the same, as with Welford; one that is zero or not finite counts for nothing."""
        counts = torch.isfinite(norm) & (norm > 0)
        self._counted += counts
        share = torch.where(self._counted > self._rule.warm_up, 1 - self._rule.memory, 1 / self._counted)
        share = torch.where(counts, share, 0.0)
        off = torch.where(counts, let_through - self.mean, 0.0)
        self.mean = self.mean + share * off
        self.variance = (1 - share) * (self.variance + share * off * off)
