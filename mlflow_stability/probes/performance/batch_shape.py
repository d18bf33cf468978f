"""Tokens, samples and a description of a batch, from its shapes and types alone.

In: the arguments of a model. Out: how many samples, how many tokens where it reads tokens; a description such as
``int64[8, 128], int64[8]``. Guarantees: values are never read, nothing is kept.

The first tensor counts, by position or by name. Integers in two dimensions are tokens, one sample a row; anything
else has one sample a row and zero tokens. A table of categories is counted as tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any, TypeAlias

import torch
from torch import Tensor

DEPTH = 2
"""How deep a tensor may lie in the lists and dictionaries that a model is called with."""
TOKEN_TYPES = (torch.int64, torch.int32)
"""What an embedding takes for an index; bytes are pictures as a rule."""

ShapeKey: TypeAlias = tuple[tuple[int, ...], ...]
"""The shapes of a batch: batches of one key cost the model the same."""


@dataclass(frozen=True, slots=True)
class BatchShape:
    """What is known of a batch."""

    samples: int
    tokens: int | None
    """None where the model does not read tokens."""
    elements: int
    """The size of the tensor that was counted."""


def batch_shape(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> BatchShape | None:
    """What these arguments of a model hold; None where no tensor with rows is found."""
    first = args[0] if args else None
    if not isinstance(first, Tensor) or not first.dim():
        first = next((each for each in tensors_in(args, kwargs) if each.dim()), None)
    if first is None:
        return None
    if first.is_nested:
        return BatchShape(first.size(0), None, 0)
    return _of(first.shape, first.dtype)


@lru_cache(maxsize=64)
def _of(shape: torch.Size, dtype: torch.dtype) -> BatchShape:
    elements = shape.numel()
    tokens = elements if len(shape) == 2 and dtype in TOKEN_TYPES else None
    return BatchShape(shape[0], tokens, elements)


def plain_batch(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...] | None:
    """What tells two batches of tensors apart here: their shapes and types; None where there is anything else in one.

    Cheaper than `shape_key` and `batch_shape`, which give the same wherever this is the same.
    """
    key: list[Any] = []
    for each in (*args, *kwargs.values()) if kwargs else args:
        if type(each) is not Tensor or each.is_nested:
            return None
        key += (each.shape, each.dtype)
    return tuple(key)


def shape_key(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> ShapeKey:
    """The shapes of all tensors of a batch."""
    if len(args) == 1 and not kwargs and isinstance(args[0], Tensor) and not args[0].is_nested:
        return (args[0].shape,)
    return tuple([tuple(each.shape) for each in tensors_in(args, kwargs) if not each.is_nested])


def tensors_in(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[Tensor]:
    """The tensors that a model is called with, in order; those by place first."""
    for each in args:
        if isinstance(each, Tensor):
            yield each
        else:
            yield from _within(each, DEPTH)
    for each in kwargs.values():
        if isinstance(each, Tensor):
            yield each
        else:
            yield from _within(each, DEPTH)


def _within(value: Any, depth: int) -> Iterator[Tensor]:
    # Packed sequences are tuples too, of all steps of all samples: their rows are no samples.
    if isinstance(value, torch.nn.utils.rnn.PackedSequence):
        return
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    for each in inner:
        if isinstance(each, Tensor):
            yield each
        elif depth > 1:
            yield from _within(each, depth - 1)


MOST_TENSORS = 8


def batch_words(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """Types and shapes of the tensors, in their order; of many only the first."""
    tensors = list(islice(tensors_in(args, kwargs), MOST_TENSORS + 1))
    words = [_word(each) for each in tensors[:MOST_TENSORS]]
    return ", ".join([*words, "…"] if len(tensors) > MOST_TENSORS else words)


def _word(tensor: Tensor) -> str:
    # The lengths in a nested tensor differ from row to row, and are asked of it in another way.
    shape = f"{tensor.size(0)} rows" if tensor.is_nested else ", ".join(map(str, tensor.shape))
    return f"{str(tensor.dtype).removeprefix('torch.')}[{shape}]"
