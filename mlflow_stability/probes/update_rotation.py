"""Remembers the newest measurement of every piece of an optimizer's parameters, turn by turn.

In: the squares of weights and updates of the pieces of one turn. Out: the newest of all, by parameter. Promised: a
step that turns out not to have been taken, as a fused loss scaler decides on the device, leaves what was known.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mlflow_stability.probes.device_numbers import on_device, widest
from mlflow_stability.probes.turns import Piece

NEVER = -1


class UpdateRotation:
    """The turns of one optimizer."""

    def __init__(self, turns: Sequence[Sequence[Piece]], columns: int, device: torch.device) -> None:
        self.turns = turns
        self.columns = columns
        self.just_completed = False
        """Whether the turn that was measured last is the last one."""
        self._at = 0
        self._measured = [NEVER] * len(turns)
        starts = [0]
        for turn in turns:
            starts.append(starts[-1] + len(turn))
        self._starts = starts
        self._of_column: list[list[int]] = [[] for _ in range(columns)]
        for number, turn in enumerate(turns):
            for piece in turn:
                self._of_column[piece.column].append(number)
        pieces = [piece.column for turn in turns for piece in turn]
        self._index = on_device(pieces, device, torch.long)
        self._newest = torch.full((2, len(pieces)), torch.nan, dtype=widest(device), device=device)

    @property
    def now(self) -> Sequence[Piece]:
        """The pieces whose turn it is."""
        return self.turns[self._at]

    @property
    def complete(self) -> bool:
        """Whether everything was measured at least once."""
        return NEVER not in self._measured

    def took(self, rows: Tensor, step: int, not_taken: Tensor | None) -> None:
        """Keep the squares of weights and updates of this turn, and go on to the next."""
        begin, end = self._starts[self._at], self._starts[self._at + 1]
        newest = self._newest[:, begin:end]
        rows = rows.to(newest, non_blocking=True)
        newest.copy_(rows if not_taken is None else torch.where(not_taken.to(newest) > 0, newest, rows))
        self._measured[self._at] = step
        self._at = (self._at + 1) % len(self.turns)
        self.just_completed = self._at == 0

    def rows(self) -> Tensor:
        """The newest squares of weights and of updates; one column for each parameter."""
        return self._newest.new_zeros(2, self.columns).index_add_(1, self._index, self._newest)

    def steps(self) -> list[tuple[int, int]]:
        """For each parameter, at which steps its oldest and its newest piece were measured."""
        found = []
        for turns in self._of_column:
            measured = [self._measured[turn] for turn in turns]
            found.append((min(measured), max(measured)))
        return found
