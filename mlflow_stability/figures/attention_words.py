"""What is written beside attention maps."""

from __future__ import annotations

import numpy as np

from mlflow_stability.figures.scale import number_text
from mlflow_stability.vocabulary.attention_map import AttentionMap

COLLAPSED = 0.05
"""A head whose entropy is below this looks at hardly more than one key."""


def about(attention: AttentionMap) -> list[str]:
    """What there is to say of a map, without its layer's name and step."""
    said = [f"{attention.kind}-attention{', causal' if attention.causal else ''}", tokens_in_words(attention)]
    if len(attention.heads) < attention.all_heads:
        said.append(f"{len(attention.heads)} of {attention.all_heads} heads")
    scores = attention.max_logit[np.isfinite(attention.max_logit)]
    return [*said, f"largest score {number_text(float(scores.max()))}"] if len(scores) else said


def tokens_in_words(attention: AttentionMap) -> str:
    """Which tokens are shown: "first 64 of 512 tokens"."""
    shape, whole = attention.shape, attention.tokens
    if attention.kind == "self" and whole[0] == whole[1]:
        return _part(shape[0], whole[0], "token")
    return f"{_part(shape[0], whole[0], 'query', 'queries')}, {_part(shape[1], whole[1], 'key')}"


def entropy_in_words(entropy: float) -> str:
    """The entropy of a head as it stands above its panel."""
    return f"{entropy:.2f}" if np.isfinite(entropy) else "not finite"


def _part(shown: int, whole: int, one: str, many: str = "") -> str:
    many = many or f"{one}s"
    if shown < whole:
        return f"first {shown:,} of {whole:,} {many}"
    return f"all {shown:,} {many}" if shown != 1 else f"1 {one}"
