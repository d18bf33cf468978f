"""What is measured, and where: the name of a series."""

from __future__ import annotations

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
