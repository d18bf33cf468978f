"""Names the rank on which a NaN began, and the one that the others wait for.

In: what all ranks measured, each time they exchange it. Out: events in the recording, and its tag of what was seen of
whom. Guarantees: each episode is told once, by the process that records.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

from mlflow_stability.detectors.reported import RankNonfinite, Straggler
from mlflow_stability.probes.ranks.rank_numbers import EVERY
from mlflow_stability.probes.ranks.rank_row import RankTable
from mlflow_stability.session.recording import Recording
from mlflow_stability.vocabulary.result.event import Event, Severity


class RankComparison:
    """The ranks of one recording."""

    def __init__(self, recording: Callable[[], Recording | None]) -> None:
        self._recording = recording
        self._noted: Recording | None = None
        self._broken_at = 0
        """The step whose loss was told of last."""
        self._slowest: int | None = None
        self._slow = 0
        """How many exchanges in a row it was slow."""

    def take(self, table: RankTable, names: Sequence[str]) -> None:
        """What all ranks measured; `names`: what each is called."""
        recording = self._recording()
        if recording is None or recording.closed:
            return
        if recording is not self._noted:
            self._noted, self._broken_at, self._slow = recording, 0, 0
            recording.note("ranks", f"{len(names)} ranks: loss and time of each at least every {EVERY} steps")
        event = self._nonfinite(table, names, recording)
        if event is not None:
            recording.emit(event)
        event = self._straggler(table, names, recording.step)
        if event is not None:
            recording.emit(event)

    def _nonfinite(self, table: RankTable, names: Sequence[str], recording: Recording) -> Event | None:
        steps = [step for step in table.broken if step > 0]
        if not steps:
            self._broken_at = 0 if self._broken_at < recording.step - EVERY else self._broken_at
            return None
        first, told = min(steps), self._broken_at
        self._broken_at = max(recording.step, max(steps))
        if told and first <= told + EVERY:  # the same episode
            return None
        where = [name for name, step in zip(names, table.broken, strict=True) if step == first]
        others = "the other ranks were finite" if len(where) < len(names) else "on all ranks"
        return Event(
            first,
            RankNonfinite.kind,
            Severity.WARNING,
            f"Non-finite loss first on {', '.join(where[:8])} at step {first}; {others} at that step.",
            evidence={"ranks": float(len(where)), "first_rank": float(table.broken.index(first))},
            remedies=RankNonfinite.remedies,
        )

    def _straggler(self, table: RankTable, names: Sequence[str], step: int) -> Event | None:
        slowest = max(range(len(names)), key=table.seconds.__getitem__)
        seconds = table.seconds[slowest]
        usual = median(each for rank, each in enumerate(table.seconds) if rank != slowest)
        if seconds < Straggler.times * usual or seconds - usual < Straggler.seconds:
            self._slowest, self._slow = None, 0
            return None
        self._slow = self._slow + 1 if slowest == self._slowest else 1
        self._slowest = slowest
        if self._slow != Straggler.in_a_row:
            return None
        return Event(
            step,
            Straggler.kind,
            Severity.INFO,
            f"{names[slowest].capitalize()} takes {seconds:.3g} s before its backward pass at step {step}, "
            f"{seconds / max(usual, 1e-9):.3g} times the {usual:.3g} s of the other ranks (threshold "
            f"{Straggler.times:g} times, {Straggler.in_a_row} comparisons in a row).",
            evidence={"seconds": seconds, "level": usual, "rank": float(slowest)},
            remedies=Straggler.remedies,
        )
