"""Knows which optimizers step together, and so when a capture is over.

In: which optimizers stepped in each capture, by identity. Out: whether all have ended their step that stepped in the
captures before. Guarantees: an optimizer that has not stepped for `REMEMBERED_CAPTURES` captures is not waited for.
"""

from __future__ import annotations

from collections.abc import Iterable

REMEMBERED_CAPTURES = 16
"""One that did not step for so long is not waited for."""


class StepOrder:
    """The optimizers of each track, by identity."""

    def __init__(self) -> None:
        self._captures_ended = 0
        self._last_stepped: dict[int, dict[int, int]] = {}
        """For each track, in which capture each optimizer stepped last."""

    def is_complete(self, track: int, ended: set[int]) -> bool:
        """Whether every optimizer has ended its step that stepped in the captures before this one."""
        stepped = self._last_stepped.get(track)
        if stepped is None:
            return False
        recent = self._captures_ended - REMEMBERED_CAPTURES
        for each, when in stepped.items():
            if when > recent and each not in ended:
                break
        else:
            return True
        return False

    def capture_ended(self, track: int, stepped: Iterable[int]) -> None:
        """These stepped in the capture that is over."""
        self._captures_ended += 1
        known = self._last_stepped.get(track)
        if known is None:
            known = self._last_stepped[track] = {}
        for each in stepped:
            known[each] = self._captures_ended

    def came_late(self, track: int, optimizer: int) -> None:
        """This one stepped after its capture seemed to be over."""
        self._last_stepped[track][optimizer] = self._captures_ended

    def clear(self) -> None:
        """Forget them all."""
        self._last_stepped.clear()
