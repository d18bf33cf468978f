"""Remembers what a walk over Python's objects has found, and tells when nothing was made since.

In: what a walk has found of a kind of objects. Out: all objects of that kind that there are now, or None where only
another walk can tell. Guarantees: nothing is kept alive; an answer is complete. Every object holds one reference to its
type, so the references to all types of a kind tell how many objects there are: where those that are known do not make
up the number, the youngest objects are looked at, and where these do not either, there is no answer.
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
    """What is looked for. Asked for by number: a class that is handed on has a few more references meanwhile."""

    MODULE = 0
    OPTIMIZER = 1
    SCHEDULE = 2
    SCALER = 3


TYPES: tuple[type, ...] = (Module, Optimizer, LRScheduler, GradScaler)
"""The class of each kind."""
YOUNG = (0, 1)
"""Python's generations of objects that are looked through without a walk: some thousand objects at most."""


class ObjectMemory:
    """What walks have found, by kind."""

    def __init__(self) -> None:
        self._found: dict[Kind, _Found] = {}

    def keep(self, kind: Kind, objects: Sequence[Any]) -> None:
        """These are all objects of this kind that there are at the moment."""
        if not _counts_references():
            return
        try:
            references = [weakref.ref(each) for each in objects]
        except TypeError:  # of this kind some cannot be referred to weakly
            self._found.pop(kind, None)
            return
        types, counts = _counted(kind)
        there = Counter(map(type, objects))
        others = weakref.WeakKeyDictionary(
            {each: count - there[each] for each, count in zip(types, counts, strict=True)}
        )
        self._found[kind] = _Found(references, others)

    def recall(self, kind: Kind) -> list[Any] | None:
        """All objects of this kind, in the order in which they were found; None where that is not known."""
        found = self._found.get(kind)
        if found is None:
            return None
        types, counts = _counted(kind)
        objects = [each for reference in found.references if (each := reference()) is not None]
        there = Counter(map(type, objects))
        lacking: dict[type, int] = {}
        for each, count in zip(types, counts, strict=True):
            others = found.others.get(each)
            if others is None:  # a class that was made since
                return None
            if count != others + there[each]:
                lacking[each] = count - others - there[each]
        if lacking:
            made = _made(lacking, {id(each) for each in objects})
            if made is None:
                return None
            objects += made
            found.references = [weakref.ref(each) for each in objects]
        return objects


class _Found:
    """All objects of a kind."""

    __slots__ = ("others", "references")

    def __init__(self, references: list[weakref.ref[Any]], others: weakref.WeakKeyDictionary[type, int]) -> None:
        self.references = references
        self.others = others
        """How many references to each type are not those of its objects."""


def _made(lacking: dict[type, int], known: set[int]) -> list[Any] | None:
    """As many objects of each type as are lacking, among the youngest; None where they are not found there."""
    if min(lacking.values()) < 0:
        return None
    made = [
        each
        for generation in YOUNG
        for each in get_objects(generation)
        if type(each) in lacking and id(each) not in known
    ]
    return made if Counter(map(type, made)) == lacking else None


def _counted(kind: Kind) -> tuple[list[type], list[int]]:
    """A class and all that are derived from it, each once, and how many references there are to each."""
    types = list(_derived_from(TYPES[kind]))
    return types, list(map(sys.getrefcount, types))


def _derived_from(kind: type) -> dict[type, None]:
    found = {kind: None}
    waiting = [kind]
    while waiting:
        derived: list[type] = type.__subclasses__(waiting.pop())
        for each in derived:
            if each not in found:
                found[each] = None
                waiting.append(each)
    return found


def _counts_references() -> bool:
    """Without the global lock, each thread counts references to types for itself."""
    is_locked = getattr(sys, "_is_gil_enabled", None)
    return is_locked is None or bool(is_locked())
