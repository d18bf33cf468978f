"""What is measured, and where: the name of a series.

Gives the same signals in the same order as one object, step after step.

In: signals, each of them an object that its maker keeps. Out: a tuple of them, the very one that was given out for them
before. Guarantees: who remembers something about a tuple of signals can tell by `is` that it is the same again, without
looking at its parts; what is kept is bounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

TRACK = "track_"
"""How the places of trainings begin that go on beside the main one."""


def of_the_whole(place: str) -> bool:
    """Whether values of this place are of a whole model: the only one, or one of several that train side by side."""
    return not place or place.startswith(TRACK)


@dataclass(frozen=True, slots=True, order=True)
class Signal:
    """A quantity of the whole model, or of one place in it."""

    quantity: str
    """What is measured: ``grad_norm``."""
    place: str = ""
    """Where: the name of a module, of an optimizer's group; empty for the whole model."""

    def __str__(self) -> str:
        """``grad_norm`` or ``grad_norm@blocks.3.attn``, as tables and messages show it."""
        return f"{self.quantity}@{self.place}" if self.place else self.quantity

    @classmethod
    def parse(cls, text: str) -> Signal:
        """Read back what ``str`` wrote."""
        quantity, _, place = text.partition("@")
        return cls(quantity, place)


MOST = 1024
"""A training has a handful of layouts; one with more than this gets new objects, which are as right."""

LAYOUTS: dict[tuple[int, ...], tuple[Signal, ...]] = {}
"""What `one_layout` has given out, by the identities of the objects in it."""


def one_layout(signals: Sequence[Signal]) -> tuple[Signal, ...]:
    """The one tuple of these very objects."""
    key = tuple(map(id, signals))  # a tuple that is kept keeps its signals, so that no other object gets their ids
    layout = LAYOUTS.get(key)
    if layout is None:
        if len(LAYOUTS) >= MOST:
            LAYOUTS.clear()
        layout = LAYOUTS[key] = tuple(signals)
    return layout
