"""Finds the tensors in whatever a model is called with, or gives back.

In: arguments and outputs of any shape: tuples, lists, dictionaries, dataclasses, one in another. Out: the tensors in
them, in order, with the way to each where it is asked for. Guarantees: without names, a microsecond or two.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

from torch import Tensor

DEEPEST = 16
"""What is nested deeper is not looked into: it may contain itself."""

_EMPTY_IS_FALSE = (dict, tuple, list, type(None))


def tensors_in(*trees: Any) -> list[Tensor]:
    """Every tensor in them, in order."""
    found: list[Tensor] = []
    for tree in trees:
        if isinstance(tree, Tensor):
            found.append(tree)
        elif type(tree) is tuple and len(tree) == 1 and isinstance(tree[0], Tensor):  # nearly always
            found.append(tree[0])
        elif type(tree) not in _EMPTY_IS_FALSE or tree:  # an array or a `TensorDict` has no truth value
            _collect(tree, found, DEEPEST)
    return found


def named_tensors(*trees: Any) -> Iterator[tuple[str, Tensor]]:
    """The same with the way to each: ``[0]['input_ids']``."""
    for tree in trees:
        yield from _named("", tree, DEEPEST)


def _collect(value: Any, found: list[Tensor], deep: int) -> None:
    if isinstance(value, Tensor):
        found.append(value)
    elif value is None or not deep:
        return
    elif isinstance(value, (tuple, list)):
        for each in value:
            _collect(each, found, deep - 1)
    elif isinstance(value, (dict, Mapping)):  # whether it is a mapping of another kind takes a microsecond to ask
        for each in value.values():
            _collect(each, found, deep - 1)
    elif _is_record(value):
        for field in fields(value):
            _collect(getattr(value, field.name, None), found, deep - 1)


def _named(name: str, value: Any, deep: int) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield name, value
    elif deep and isinstance(value, tuple | list):
        for number, each in enumerate(value):
            yield from _named(f"{name}[{number}]", each, deep - 1)
    elif deep and isinstance(value, Mapping):
        for key, each in value.items():
            yield from _named(f"{name}[{key!r}]", each, deep - 1)
    elif deep and _is_record(value):
        for field in fields(value):
            yield from _named(f"{name}.{field.name}", getattr(value, field.name, None), deep - 1)


def _is_record(value: Any) -> bool:
    return hasattr(value, "__dataclass_fields__") and not isinstance(value, type)
