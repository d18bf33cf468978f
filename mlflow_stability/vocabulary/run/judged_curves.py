"""Which curves of a run are its loss and its validation loss: what somebody asked for, and what was judged."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AskedCurves:
    """The names that somebody gave; empty where the choice is ours."""

    loss: str = ""
    val_loss: str = ""

    def __bool__(self) -> bool:
        """Whether any was given."""
        return bool(self.loss or self.val_loss)


@dataclass(frozen=True, slots=True)
class JudgedCurves:
    """The curves that a diagnosis was made from."""

    losses: tuple[str, ...] = ()
    """The main one first; several where several models train, or several losses follow one another."""
    validations: tuple[str, ...] = ()
    others: int = 0
    """How many other curves the run has, without clocks, counters and the layers of a recorded run."""
    reasons: tuple[str, ...] = ()
    """Why these, where the names alone did not say it."""
