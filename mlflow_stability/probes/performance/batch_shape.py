"""Tokens, samples and a description of a batch, from the shapes and types of its tensors; no value is read.

The first tensor counts, by position or by name. Integers in two dimensions are tokens, one sample a row; anything
else has one sample a row and zero tokens. A table of categories is counted as tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any, TypeAlias

import torch
from torch import Tensor

MAX_DEPTH = 2  # levels of lists and dictionaries in which tensors are looked for
TOKEN_TYPES = (torch.int64, torch.int32)  # indices of an embedding; bytes are usually pictures

ShapeKey: TypeAlias = tuple[tuple[int, ...], ...]  # batches of the same shapes take the same FLOPs


@dataclass(frozen=True, slots=True)
class BatchShape:
    samples: int
    tokens: int | None
    """None where the model does not read tokens."""
    elements: int
    """The size of the tensor that was counted."""


def batch_shape(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> BatchShape | None:
    """Return the sizes of the batch in these arguments, or None if they have no tensor with rows."""
    first = args[0] if args else None
    if not isinstance(first, Tensor) or not first.dim():
        first = next((tensor for tensor in tensors_in(args, kwargs) if tensor.dim()), None)
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
    """Return shapes and types if all arguments are plain tensors, else None.

    Cheaper than `shape_key` and `batch_shape`, whose results are the same for equal keys.
    """
    key: list[Any] = []
    for argument in (*args, *kwargs.values()) if kwargs else args:
        if type(argument) is not Tensor or argument.is_nested:
            return None
        key += (argument.shape, argument.dtype)
    return tuple(key)


def shape_key(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> ShapeKey:
    if len(args) == 1 and not kwargs and isinstance(args[0], Tensor) and not args[0].is_nested:
        return (args[0].shape,)
    return tuple([tuple(tensor.shape) for tensor in tensors_in(args, kwargs) if not tensor.is_nested])


def tensors_in(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[Tensor]:
    """Yield the tensors in the arguments of a model, positional arguments first."""
    yield from _tensors_within((*args, *kwargs.values()), MAX_DEPTH + 1)


def _tensors_within(values: Iterable[Any], depth: int) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        # The rows of a packed sequence, which is a tuple, are steps of samples.
        elif depth > 1 and not isinstance(value, torch.nn.utils.rnn.PackedSequence):
            inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
            yield from _tensors_within(inner, depth - 1)


MAX_DESCRIBED_TENSORS = 8


def batch_words(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """Describe types and shapes of the first tensors: ``int64[8, 128], int64[8]``."""
    tensors = list(islice(tensors_in(args, kwargs), MAX_DESCRIBED_TENSORS + 1))
    words = [_word(tensor) for tensor in tensors[:MAX_DESCRIBED_TENSORS]]
    return ", ".join([*words, "…"] if len(tensors) > MAX_DESCRIBED_TENSORS else words)


def _word(tensor: Tensor) -> str:
    # Rows of a nested tensor have different lengths, and it has no `shape`.
    shape = f"{tensor.size(0)} rows" if tensor.is_nested else ", ".join(map(str, tensor.shape))
    return f"{str(tensor.dtype).removeprefix('torch.')}[{shape}]"
