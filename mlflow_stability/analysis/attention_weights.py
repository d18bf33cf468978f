"""Maps of attention weights that somebody has: tensors and arrays, of one layer or of several.

In: weights by (queries, keys), (heads, queries, keys) or (batch, heads, queries, keys); a list has one for each
layer, as `output_attentions=True` of transformers gives it. Out: attention maps. Guarantees: the entropy is what a
recording measures: over the whole batch, 1 where a query attends to all keys that it may attend to alike; the weights
are of the first sample.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.errors import SettingsError
from mlflow_stability.vocabulary.argument import short_repr
from mlflow_stability.vocabulary.measured import UNNAMED_LAYER, AttentionMap


def maps_of_weights(
    given: Any, step: int = 0, layer: str = UNNAMED_LAYER, argument: str = "weights"
) -> tuple[AttentionMap, ...]:
    """One map for each layer that is given; a single one is called `layer`.

    `argument` is what an error calls what was given.
    """
    if isinstance(given, AttentionMap):
        return (given,)
    if _has_layers(given):
        return tuple(
            each if isinstance(each, AttentionMap) else _map(each, step, f"layer {number}", number, argument)
            for number, each in enumerate(given)
        )
    return (_map(given, step, layer, 0, argument),)


@dataclass(frozen=True, slots=True)
class PositionEntropy:
    """The entropy of the heads of one layer, query by query."""

    layer: str
    positions: NDArray[np.int64]
    """The queries that may attend to more than one key, from 0 on."""
    entropy: NDArray[np.float32]
    """By head and position."""


def entropy_by_position(given: Any, argument: str) -> list[PositionEntropy]:
    """The same entropy, of each query alone, for each layer that is given; a map has that of its sample."""
    layers = list(given) if _has_layers(given) else [given]
    found = []
    for number, weights in enumerate(layers):
        name = f"layer {number}" if len(layers) > 1 else UNNAMED_LAYER
        if isinstance(weights, AttentionMap):
            name, every, causal = weights.layer, weights.weights.astype(np.float32)[None], weights.causal
        else:
            every = _weights(weights, argument)
            causal = _is_causal(every)
        positions, rows = _entropy_of_queries(every, causal=causal)
        found.append(PositionEntropy(name, positions, rows.mean(0)))
    return found


def _has_layers(given: Any) -> bool:
    """Whether it is a list of layers, rather than the rows of one matrix."""
    return (
        isinstance(given, list | tuple)
        and len(given) > 0
        and all(isinstance(each, AttentionMap) or len(getattr(each, "shape", ())) > 1 for each in given)
    )


def _weights(given: Any, argument: str) -> NDArray[np.float32]:
    """By batch, head, query and key."""
    array = given.detach().float().cpu().numpy() if hasattr(given, "detach") else given
    try:
        every = np.asarray(array, dtype=np.float32)
    except (TypeError, ValueError):
        every = np.zeros(0, np.float32)
    if every.ndim in (2, 3):
        every = every[(None,) * (4 - every.ndim)]
    if every.ndim != 4 or not every.size:
        raise SettingsError(
            f"{argument} must be the id of an MLflow run, a path, an AttentionMap, or a tensor of weights; got "
            f"{short_repr(given)}. Weights have the dimensions (queries, keys), (heads, queries, keys) or (batch, "
            "heads, queries, keys); a list of them has one for each layer."
        )
    return every


def _is_causal(weights: NDArray[np.float32]) -> bool:
    *_, queries, keys = weights.shape
    return queries == keys and keys > 1 and not np.triu(weights, 1).any()


def _map(given: Any, step: int, layer: str, number: int, argument: str) -> AttentionMap:
    every = _weights(given, argument)
    _, heads, queries, keys = every.shape
    causal, weights = _is_causal(every), every[0]
    return AttentionMap(
        step,
        0,
        layer,
        number,
        tuple(range(heads)),
        weights.astype(np.float16),
        weights.mean(0),
        _entropy(every, causal=causal),
        np.full(heads, np.nan, np.float32),
        causal=causal,
        tokens=(queries, keys),
    )


def _entropy(weights: NDArray[np.float32], *, causal: bool) -> NDArray[np.float32]:
    """Of every head, over all queries that have a choice."""
    positions, rows = _entropy_of_queries(weights, causal=causal)
    if not len(positions):
        return np.zeros(weights.shape[1], np.float32)
    entropy: NDArray[np.float32] = rows.mean((0, 2)).astype(np.float32)
    return entropy


def _entropy_of_queries(weights: NDArray[np.float32], *, causal: bool) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The queries that have a choice, and their entropy by batch, head and query."""
    _, _, queries, keys = weights.shape
    allowed = np.arange(1, queries + 1) if causal else np.full(queries, keys)
    choice = np.flatnonzero(allowed > 1)
    logs = np.log(np.where(weights > 0, weights, 1.0))
    rows = -(weights * logs).sum(-1)[..., choice] / np.log(allowed[choice])
    return choice, rows.astype(np.float32)
