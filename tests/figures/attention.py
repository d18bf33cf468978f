"""Attention maps as trainings leave them."""

from __future__ import annotations

import numpy as np

from mlflow_stability.vocabulary.measured.layer_arrays import AttentionMap


def attention(
    heads: int = 4,
    queries: int = 8,
    keys: int = 8,
    *,
    step: int = 500,
    attempt: int = 0,
    layer: str = "transformer.h.0.attn",
    number: int = 0,
    all_heads: int | None = None,
    tokens: tuple[int, int] | None = None,
    causal: bool = False,
    kind: str = "self",
    seed: int = 0,
) -> AttentionMap:
    """A map of random scores, its rows adding up to 1 where all keys are kept."""
    dice = np.random.default_rng(seed + 1000 * number + step)
    every = all_heads or heads
    scores = dice.normal(0, 2, (every, queries, keys))
    if causal:
        scores = np.where(np.arange(keys) > np.arange(queries)[:, None], -np.inf, scores)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    kept = np.linspace(0, every - 1, heads).round().astype(int)
    return AttentionMap(
        step,
        attempt,
        layer,
        number,
        tuple(kept.tolist()),
        weights[kept].astype(np.float16),
        weights.mean(0).astype(np.float32),
        dice.uniform(0.3, 1.0, every).astype(np.float32),
        np.nan_to_num(scores, neginf=-9).max((1, 2)).astype(np.float32),
        kind,
        causal,
        tokens or (queries, keys),
    )


def same(attention_map: AttentionMap, other: AttentionMap) -> bool:
    """Whether two maps say the same, to the last bit."""
    plain = ("step", "attempt", "layer", "layer_number", "heads", "kind", "causal", "tokens")
    arrays = ("weights", "average", "entropy", "max_logit")
    return all(getattr(attention_map, name) == getattr(other, name) for name in plain) and all(
        getattr(attention_map, name).dtype == getattr(other, name).dtype
        and np.array_equal(getattr(attention_map, name), getattr(other, name), equal_nan=True)
        for name in arrays
    )
