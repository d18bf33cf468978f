"""Walks through nested values: the state of an optimizer or scheduler is numbers, tensors and containers of them.

In: a value. Out: the same with every tensor replaced. Guarantees: containers are made anew, so that the result shares
nothing with a living training; what is none of these is deep-copied and marked, for a checkpoint cannot hold it.
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
    """A value of a type that only its own library knows: kept in memory, left out of a checkpoint."""

    value: Any


def replaced(value: Any, tensor: Callable[[Tensor], Any]) -> Any:
    """The value with its tensors replaced, in containers of its own."""
    if isinstance(value, Tensor):
        return tensor(value)
    if value is None or type(value) in _PLAIN or isinstance(value, torch.dtype | torch.device):
        return value
    for kind in _PLAIN:  # NumPy's numbers are numbers, and enumerations of text are text
        if isinstance(value, cast("type", kind)):
            return kind(value)
    if isinstance(value, Counter | OrderedDict):
        return type(value)({key: replaced(each, tensor) for key, each in value.items()})
    if isinstance(value, dict):
        return {key: replaced(each, tensor) for key, each in value.items()}
    if isinstance(value, list | deque):
        return [replaced(each, tensor) for each in value]
    if isinstance(value, tuple):
        return tuple(replaced(each, tensor) for each in value)
    if isinstance(value, UnknownValue):
        return value
    if hasattr(value, "item") and getattr(value, "shape", None) == ():
        return replaced(value.item(), tensor)
    return UnknownValue(copy.deepcopy(value))


def without_foreign(value: Any) -> Any:
    """The value without what a checkpoint cannot hold: entries of dictionaries fall out, places in lists are None."""
    if isinstance(value, UnknownValue):
        return None
    if isinstance(value, dict):
        kept = {key: without_foreign(each) for key, each in value.items() if not isinstance(each, UnknownValue)}
        return type(value)(kept) if isinstance(value, Counter | OrderedDict) else kept
    if isinstance(value, list):
        return [without_foreign(each) for each in value]
    if isinstance(value, tuple):
        return tuple(without_foreign(each) for each in value)
    return value


def restored_value(value: Any, tensor: Callable[[Tensor], Tensor] = Tensor.clone) -> Any:
    """A value that may be given to the training: nothing in it is shared with the copy."""
    if isinstance(value, UnknownValue):
        return copy.deepcopy(value.value)
    if isinstance(value, Tensor):
        return tensor(value)
    if isinstance(value, dict):
        made = {key: restored_value(each, tensor) for key, each in value.items()}
        return type(value)(made) if isinstance(value, Counter | OrderedDict) else made
    if isinstance(value, list):
        return [restored_value(each, tensor) for each in value]
    if isinstance(value, tuple):
        return tuple(restored_value(each, tensor) for each in value)
    return value


def foreign_paths(value: Any, path: str = "") -> tuple[str, ...]:
    """Where in a value things are that a checkpoint cannot hold."""
    if isinstance(value, UnknownValue):
        return (f"{path.lstrip('/')}: {type(value.value).__name__}",)
    if isinstance(value, dict):
        pairs = list(value.items())
    elif isinstance(value, list | tuple):
        pairs = list(enumerate(value))
    else:
        return ()
    return tuple(found for key, each in pairs for found in foreign_paths(each, f"{path}/{key}"))
