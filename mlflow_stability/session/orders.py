"""What is to be done when a step is over, as it was decided from what was read.

Where several processes train together the first one decides, and its orders reach all of them, itself among them, with
the vote at the next gate: so that each does the same after the same step.
"""

from __future__ import annotations

from dataclasses import dataclass

from mlflow_stability.errors import TrainingDiverged
from mlflow_stability.recovery.decisions import Decision

FIELDS = 9


@dataclass(slots=True)
class Orders:
    """The orders for the end of one step."""

    healthy: bool = False
    """The states that wait for their proof are one healthy step further."""
    trouble: bool = False
    """They may carry what led to trouble: drop them."""
    snapshot: bool = False
    checkpoint: bool = False
    rollback: Decision | None = None
    ending: Exception | None = None
    """What the training is to be ended with."""

    def joined(self, later: Orders) -> Orders:
        """Both, where a second step was read before the orders for the first were carried out."""
        return Orders(
            later.healthy and not self.trouble,
            self.trouble or later.trouble,
            rollback=self.rollback or later.rollback,
            ending=self.ending or later.ending,
        )

    def as_numbers(self, step: int) -> list[float]:
        """As they travel between processes; steps are counted backwards from `step`, for each process counts its own.

        The reason stays with the one who decides, for only that one records.
        """
        back = self.rollback
        where = [0.0, 1.0, 0.0, 1.0]
        if back is not None:
            where = [1.0 + step - back.target, back.easing_factor, back.easing_steps, back.lasting_share]
        flags = [self.healthy, self.trouble, self.snapshot, self.checkpoint, self.ending is not None]
        return [*map(float, flags), *map(float, where)]

    @classmethod
    def from_numbers(cls, numbers: list[float], step: int) -> Orders:
        """Read them where they arrive."""
        healthy, trouble, snapshot, checkpoint, ends, back, factor, steps, lasting = numbers
        decision = None
        if back > 0:
            target = step - (round(back) - 1)
            decision = Decision(
                "rollback", target=target, easing_factor=factor, easing_steps=round(steps), lasting_share=lasting
            )
        ending = TrainingDiverged("Training was ended by the first of its processes.") if ends > 0 else None
        return cls(healthy > 0, trouble > 0, snapshot > 0, checkpoint > 0, decision, ending)
