"""Gives the same signals in the same order as one object, step after step.

In: signals, each of them an object that its maker keeps. Out: a tuple of them, the very one that was given out for them
before. Promised: who remembers something about a tuple of signals can tell by `is` that it is the same again, without
looking at its parts; what is kept is bounded.
"""

from __future__ import annotations

from collections.abc import Sequence

from mlflow_stability.vocabulary.signal import Signal

MOST = 1024
"""A training has a handful of layouts; one with more than this gets new objects, which are as right."""

_known: dict[tuple[int, ...], tuple[Signal, ...]] = {}


def one_layout(signals: Sequence[Signal]) -> tuple[Signal, ...]:
    """The one tuple of these very objects."""
    key = tuple(map(id, signals))  # a tuple that is kept keeps its signals, so that no other object gets their ids
    layout = _known.get(key)
    if layout is None:
        if len(_known) >= MOST:
            _known.clear()
        layout = _known[key] = tuple(signals)
    return layout
