"""The learning rate is thirty times too high for twenty steps."""

from __future__ import annotations

from zoo.failure import Failure
from zoo.language import scheduled_gpt
from zoo.loop import Trouble

FIRST, LAST = 261, 280


class TooHighForAWhile(Trouble):
    def share_of_lr(self, step: int, share: float) -> float:
        return 30 * share if FIRST <= step <= LAST else share


FAILURE = Failure(
    name="learning rate x30",
    what="The schedule gives thirty times the learning rate for twenty steps.",
    task=scheduled_gpt,
    trouble=TooHighForAWhile(),
    onset=FIRST + 1,
    recoverable=True,
    why="Weights from before the jump; it must be done again where the first time came too early in the jump.",
)
