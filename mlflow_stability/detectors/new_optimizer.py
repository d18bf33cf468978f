"""Tells where another optimizer takes over, after which a loss may have another level.

In: the signals of steps: the learning rates that come with a loss say which optimizers step for it. Out: the losses
whose optimizer is seen for the first time. A panel forgets what was normal where the first loss under it, which no
update of it has changed yet, is far above that: the script has given the model another objective or other data.
"""

from __future__ import annotations

from collections.abc import Sequence

from mlflow_stability.vocabulary.measured.signal import Signal


class OptimizersOfLosses:
    """By place of a loss: the optimizers that have stepped for it, as the places of their learning rates."""

    __slots__ = ("_seen",)

    def __init__(self) -> None:
        self._seen: dict[str, set[str]] = {}

    def taken_over(self, signals: Sequence[Signal]) -> list[int]:
        """Which of these signals are losses for which only optimizers step that never did before."""
        rates = {signal.place for signal in signals if signal.quantity == "learning_rate"}
        found = []
        for index, signal in enumerate(signals):
            if signal.quantity == "loss" and rates:
                seen = self._seen.setdefault(signal.place, set())
                if seen and not rates & seen:
                    found.append(index)
                seen |= rates
        return found
