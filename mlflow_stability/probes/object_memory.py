"""Remembers the objects that a walk over all Python objects has found, and knows whether any were made since.

Every object holds one reference to its type, so the references to all types of a kind tell how many objects there are.
If the remembered objects do not make up that number, the youngest objects are searched; if these do not either, only
another walk can tell. Guarantees: nothing is kept alive; an answer is complete.
"""

from __future__ import annotations

import sys
import weakref
from collections import Counter
from collections.abc import Sequence
from enum import IntEnum
from gc import get_objects
from typing import Any

from torch.amp import GradScaler
from torch.nn import Module
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler


class Kind(IntEnum):
    """Kind of objects; a number, because passing a class around adds references to it."""

    MODULE = 0
    OPTIMIZER = 1
    SCHEDULE = 2
    SCALER = 3


TYPES: tuple[type, ...] = (Module, Optimizer, LRScheduler, GradScaler)
YOUNG_GENERATIONS = (0, 1)  # some thousand objects at most


class ObjectMemory:
    """Objects that walks have found, by kind."""

    def __init__(self) -> None:
        self._found: dict[Kind, _Found] = {}

    def keep(self, kind: Kind, objects: Sequence[Any]) -> None:
        if not _counts_references():
            return
        try:
            references = [weakref.ref(held) for held in objects]
        except TypeError:  # some have no weak references
            self._found.pop(kind, None)
            return
        types, counts = _counted(kind)
        there = Counter(map(type, objects))
        others = weakref.WeakKeyDictionary({cls: count - there[cls] for cls, count in zip(types, counts, strict=True)})
        self._found[kind] = _Found(references, others)

    def recall(self, kind: Kind) -> list[Any] | None:
        """Return all objects of this kind in the order in which they were found, or None if that is unknown."""
        remembered = self._found.get(kind)
        if remembered is None:
            return None
        types, counts = _counted(kind)
        objects = [held for reference in remembered.references if (held := reference()) is not None]
        there = Counter(map(type, objects))
        lacking: dict[type, int] = {}
        for cls, count in zip(types, counts, strict=True):
            others = remembered.others.get(cls)
            if others is None:  # a class that was made since
                return None
            if count != others + there[cls]:
                lacking[cls] = count - others - there[cls]
        if lacking:
            made = _made(lacking, set(map(id, objects)))
            if made is None:
                return None
            objects += made
            remembered.references = [weakref.ref(held_object) for held_object in objects]
        return objects


class _Found:
    __slots__ = ("others", "references")

    def __init__(self, references: list[weakref.ref[Any]], others: weakref.WeakKeyDictionary[type, int]) -> None:
        self.references = references
        self.others = others  # references to each type that are not those of its objects


def _made(lacking: dict[type, int], remembered: set[int]) -> list[Any] | None:
    if min(lacking.values()) < 0:
        return None
    made = [
        young
        for generation in YOUNG_GENERATIONS
        for young in get_objects(generation)
        if type(young) in lacking and id(young) not in remembered
    ]
    return made if Counter(map(type, made)) == lacking else None


def _counted(kind: Kind) -> tuple[list[type], list[int]]:
    types = list(_derived_from(TYPES[kind]))
    return types, list(map(sys.getrefcount, types))


def _derived_from(kind: type) -> dict[type, None]:
    classes = {kind: None}
    waiting = [kind]
    while waiting:
        derived: list[type] = type.__subclasses__(waiting.pop())
        for cls in derived:
            if cls not in classes:
                classes[cls] = None
                waiting.append(cls)
    return classes


# Without the global lock, each thread counts references to types for itself.
def _counts_references() -> bool:
    is_locked = getattr(sys, "_is_gil_enabled", None)
    return is_locked is None or bool(is_locked())
