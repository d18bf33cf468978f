"""Remembers which optimizers stepped in the last cycles, to know when all of a cycle have."""

from __future__ import annotations

from collections.abc import Iterable

REMEMBERED_CYCLES = 16
"""One that did not step for so long is not waited for."""


class StepOrder:
    """The optimizers of each track, by identity."""

    def __init__(self) -> None:
        self._cycles_ended = 0
        self._last_stepped: dict[int, dict[int, int]] = {}
        """For each track, in which cycle each optimizer stepped last."""

    def is_complete(self, track: int, ended: set[int]) -> bool:
        """Whether every optimizer has ended its step that stepped in the cycles before this one."""
        stepped = self._last_stepped.get(track)
        if stepped is None:
            return False
        recent = self._cycles_ended - REMEMBERED_CYCLES
        for each, when in stepped.items():
            if when > recent and each not in ended:
                break
        else:
            return True
        return False

    def cycle_ended(self, track: int, stepped: Iterable[int]) -> None:
        """These stepped in the cycle that is over."""
        self._cycles_ended += 1
        known = self._last_stepped.get(track)
        if known is None:
            known = self._last_stepped[track] = {}
        for each in stepped:
            known[each] = self._cycles_ended

    def came_late(self, track: int, optimizer: int) -> None:
        """This one stepped after its cycle seemed to be over."""
        self._last_stepped[track][optimizer] = self._cycles_ended

    def clear(self) -> None:
        """Forget them all."""
        self._last_stepped.clear()
