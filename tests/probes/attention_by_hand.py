"""Looks into the attention of a model, and the plain tables of weights that the numbers must agree with."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from probes.looked_into import unguarded
from torch import Tensor, nn

from mlflow_stability.probes.inside.attention_probe import AttentionProbe
from mlflow_stability.vocabulary.measured.layer_arrays import AttentionMap


@dataclass
class Looked:
    """What one forward pass was found to be."""

    output: Any
    entropy: dict[str, list[float]] = field(default_factory=dict)
    """By layer, of each head."""
    max_logit: dict[str, list[float]] = field(default_factory=dict)
    collapsed: float = math.nan
    maps: list[AttentionMap] = field(default_factory=list)


def looked(model: nn.Module, *args: Any, tokens: int = 64, **kwargs: Any) -> Looked:
    """One forward pass with a probe that is open, and the same one without: they must be equal to the bit."""
    maps: list[AttentionMap] = []
    probe = AttentionProbe(1, tokens, unguarded, maps.append)
    dice = torch.get_rng_state()
    bare = model(*args, **kwargs)
    after = torch.get_rng_state()
    torch.set_rng_state(dice)
    assert probe.due(1)
    probe.open(model, 7, lambda: True)
    try:
        output = model(*args, **kwargs)
    finally:
        probe.close(True)
    assert torch.equal(after, torch.get_rng_state())
    assert equal(bare, output)
    result = Looked(output, maps=maps)
    for block in probe.blocks():
        assert isinstance(block.values, Tensor)
        for signal, value in zip(block.signals, block.values.tolist(), strict=True):
            if signal.quantity == "collapsed_heads":
                result.collapsed = value
                continue
            layer, _, head = signal.place.rpartition(".head_")
            row = getattr(result, signal.quantity.removeprefix("attention_")).setdefault(layer, [])
            assert len(row) == int(head), "heads come in their order"
            row.append(value)
    return result


def equal(first: Any, other: Any) -> bool:
    """The same tensors to the bit, however they are packed."""
    if isinstance(first, Tensor):
        if first.is_nested:
            return equal(list(first.unbind()), list(other.unbind()))
        return torch.equal(first.nan_to_num(7.0), other.nan_to_num(7.0)) and first.requires_grad == other.requires_grad
    if isinstance(first, dict):
        return all(equal(first[name], other[name]) for name in first)
    if isinstance(first, (tuple, list)):
        return all(equal(mine, theirs) for mine, theirs in zip(first, other, strict=True))
    return first == other


def by_hand(logits: Tensor, allowed: Tensor) -> tuple[list[float], list[float]]:
    """Of each head the mean entropy of its rows as a share of the logarithm of the keys allowed, and largest logit.

    `logits` and `allowed`: by sample, head, query, key. Row by row, in double precision.
    """
    samples, heads, queries, _ = logits.shape
    allowed = allowed.expand_as(logits)
    entropies, peaks = [], []
    for head in range(heads):
        shares, largest = [], -math.inf
        for sample in range(samples):
            for query in range(queries):
                row = logits[sample, head, query].double()[allowed[sample, head, query]]
                if len(row):
                    largest = max(largest, row.max().item())
                if len(row) > 1:
                    weights = row.softmax(0)
                    shares.append(-torch.special.xlogy(weights, weights).sum().item() / math.log(len(row)))
        entropies.append(sum(shares) / len(shares) if shares else math.nan)
        peaks.append(largest)
    return entropies, peaks
