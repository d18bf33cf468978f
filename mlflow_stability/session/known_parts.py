"""Keeps up with what belongs to the training: its optimizers as they come to their gates, and all that is around them.

In: optimizers at their gates. Out: the parts of the training, and word when they have changed. Promised: nothing is
kept alive; objects are looked for only when an optimizer is new or a part is gone.
"""

from __future__ import annotations

import weakref
from typing import Any

from torch.optim import Optimizer

from mlflow_stability.recovery.discovery import find_parts
from mlflow_stability.recovery.training_parts import TrainingParts, WeakTrainingParts

MOST_SEARCHES = 32
"""A script that makes an optimizer for every sample is no training whose state could be kept."""


class ChangingPartsError(RuntimeError):
    """Optimizers come and go too fast."""


class KnownParts:
    """The parts of one training, as far as they were met."""

    def __init__(self) -> None:
        self._optimizers: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._order: list[weakref.ref[Optimizer]] = []
        self._parts: WeakTrainingParts | None = None
        self._searches = 0

    def meet(self, optimizer: Optimizer, scaler: Any) -> bool:
        """Take note of an optimizer at its gate; True when the training has other parts than before."""
        if optimizer not in self._optimizers:
            self._optimizers.add(optimizer)
            self._order.append(weakref.ref(optimizer))
        elif self._parts is not None and self.alive() is not None:
            return False
        self._searches += 1
        if self._searches > MOST_SEARCHES:
            raise ChangingPartsError(f"the training's optimizers have changed {MOST_SEARCHES} times")
        self._order = [each for each in self._order if each() is not None]
        known = [found for each in self._order if (found := each()) is not None]
        self._parts = WeakTrainingParts(find_parts(known, scaler))
        return True

    def alive(self) -> TrainingParts | None:
        """The parts; None where there are none yet, or one of them is gone."""
        return None if self._parts is None else self._parts.alive()

    def optimizers(self) -> list[Optimizer]:
        """The optimizers that are still there, in the order in which they first stepped."""
        return [found for each in self._order if (found := each()) is not None]
