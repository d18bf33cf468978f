"""Nested values in states of optimizers and schedulers: numbers, tensors and containers of them.

All functions return new containers. Other objects are deep-copied and marked, for a checkpoint cannot hold them.
"""

from __future__ import annotations

import copy
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

_PLAIN: tuple[Callable[[Any], Any], ...] = (bool, int, float, str, bytes)


@dataclass(frozen=True, slots=True)
class UnknownValue:
    """An object of an unknown type: kept in memory, left out of checkpoints."""

    value: Any


def map_tensors(value: Any, tensor: Callable[[Tensor], Any]) -> Any:
    if isinstance(value, Tensor):
        return tensor(value)
    if value is None or type(value) in _PLAIN or isinstance(value, torch.dtype | torch.device):
        return value
    for kind in _PLAIN:  # NumPy's numbers are numbers, and enumerations of text are text
        if isinstance(value, cast("type", kind)):
            return kind(value)
    if isinstance(value, dict | list | tuple | deque):
        return _with_items(list(value) if isinstance(value, deque) else value, lambda item: map_tensors(item, tensor))
    if isinstance(value, UnknownValue):
        return value
    if hasattr(value, "item") and getattr(value, "shape", None) == ():
        return map_tensors(value.item(), tensor)
    return UnknownValue(copy.deepcopy(value))


def without_foreign(value: Any) -> Any:
    """Drop what a checkpoint cannot hold: entries of dictionaries vanish, list items become None."""
    if isinstance(value, UnknownValue):
        return None
    if isinstance(value, dict):
        kept = {key: item for key, item in value.items() if not isinstance(item, UnknownValue)}
        value = type(value)(kept) if isinstance(value, Counter | OrderedDict) else kept
    return _with_items(value, without_foreign)


def copy_for_training(value: Any, tensor: Callable[[Tensor], Tensor] = Tensor.clone) -> Any:
    """Return a value for the training that shares nothing with the copy."""
    if isinstance(value, UnknownValue):
        return copy.deepcopy(value.value)
    if isinstance(value, Tensor):
        return tensor(value)
    return _with_items(value, lambda item: copy_for_training(item, tensor))


def _with_items(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return a container with changed items; other values as they are."""
    if isinstance(value, dict):
        made = {key: change(item) for key, item in value.items()}
        return type(value)(made) if isinstance(value, Counter | OrderedDict) else made
    if isinstance(value, list):
        return [change(item) for item in value]
    if isinstance(value, tuple):
        return tuple(change(item) for item in value)
    return value


def foreign_paths(value: Any, path: str = "") -> tuple[str, ...]:
    """Return the paths of objects that a checkpoint cannot hold."""
    if isinstance(value, UnknownValue):
        return (f"{path.lstrip('/')}: {type(value.value).__name__}",)
    if isinstance(value, dict):
        pairs = list(value.items())
    elif isinstance(value, list | tuple):
        pairs = list(enumerate(value))
    else:
        return ()
    return tuple(place for key, item in pairs for place in foreign_paths(item, f"{path}/{key}"))
