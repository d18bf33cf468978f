"""Attention of one layer at one step, for the first tokens of one sample."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = Mapping[str, NDArray[Any]]

UNNAMED_LAYER = "attention"  # layer name of weights that were given without one


@dataclass(frozen=True, slots=True, eq=False)
class AttentionMap:
    """The weights of some heads, their mean over all heads, and two numbers of every head.

    Example:

        >>> weights = np.full((1, 2, 3), 1 / 3, np.float16)
        >>> AttentionMap(10, 0, "encoder.attention", 0, (0,), weights, weights[0], np.ones(1), np.zeros(1)).shape
        (2, 3)
    """

    step: int
    """The step at which it was measured."""
    attempt: int
    """How many rollbacks there were before it."""
    layer: str
    """The name of the module that attends."""
    layer_number: int
    """Its place in the order of the forward pass, from 0 on."""
    heads: tuple[int, ...]
    """Which heads `weights` holds, from 0 on."""
    weights: NDArray[np.float16]
    """By head, query and key. A row is a share of all keys that the model used, so where there are more keys than are
    kept, it adds up to less than 1."""
    average: NDArray[np.float32]
    """By query and key: the mean over all heads, those left out of `weights` too."""
    entropy: NDArray[np.float32]
    """Of every head, in the order of heads: 0 where each query looks at one key, 1 where at all of them alike."""
    max_logit: NDArray[np.float32]
    """Of every head: the largest score before the softmax."""
    kind: str = "self"
    """``self`` or ``cross``."""
    causal: bool = False
    """Whether no query may look at a key behind its own place."""
    tokens: tuple[int, int] = (0, 0)
    """How many queries and keys there were in all; of these the first are kept."""

    @property
    def all_heads(self) -> int:
        """How many heads the layer has."""
        return len(self.entropy)

    @property
    def shape(self) -> tuple[int, int]:
        """How many queries and keys are kept."""
        queries, keys = self.average.shape
        return queries, keys


_ARRAYS = {"weights": np.float16, "average": np.float32, "entropy": np.float32, "max_logit": np.float32}


def attention_arrays(attention: AttentionMap) -> dict[str, NDArray[Any]]:
    """Return the map as named arrays, for `attention_map_from`."""
    header = {field.name: getattr(attention, field.name) for field in fields(attention) if field.name not in _ARRAYS}
    text = json.dumps(header, default=lambda number: number.item())  # numbers of NumPy
    return {
        "head": np.frombuffer(text.encode(), np.uint8),  # NumPy text takes four bytes a letter
        **{name: np.asarray(getattr(attention, name), dtype) for name, dtype in _ARRAYS.items()},
    }


def attention_map_from(arrays: Arrays) -> AttentionMap:
    """Read the arrays that `attention_arrays` made; KeyError or ValueError where they are not a map."""
    header = json.loads(arrays["head"].tobytes())
    weights, average = arrays["weights"], arrays["average"]
    if weights.ndim != 3 or average.shape != weights.shape[1:] or len(header["heads"]) != len(weights):
        raise ValueError(f"weights of the shape {weights.shape} and an average of {average.shape} do not form a map")
    queries, keys = header["tokens"]
    values: dict[str, Any] = {
        name: header[name] for name in ("step", "attempt", "layer", "layer_number", "kind", "causal")
    }
    values |= {name: arrays[name] for name in _ARRAYS}
    return AttentionMap(heads=tuple(header["heads"]), tokens=(queries, keys), **values)
