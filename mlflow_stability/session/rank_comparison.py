"""Name the rank on which a NaN, a loss spike or a slow step began, and the rank that the others wait for.

Guarantees: each episode is reported once, by the rank that records.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from statistics import median

import torch

from mlflow_stability.kinds.reported.ranks import (
    RankFacts,
    RankNonfinite,
    RankNonfiniteFacts,
    RankSlowStep,
    RankSlowStepFacts,
    RankSpike,
    RankSpikeFacts,
    Straggler,
    StragglerFacts,
)
from mlflow_stability.probes.ranks.rank_exchange import EVERY
from mlflow_stability.probes.ranks.rank_row import RankTable, z_of_all
from mlflow_stability.session.recording.recording import Recording
from mlflow_stability.vocabulary.result import Finding, Severity


def rank_and_world_size() -> tuple[int, int]:
    """Return the place of this process in the training; (0, 1) with one process."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    # A launcher has started several, and the script brings them together by other means than torch.distributed.
    try:
        return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    except ValueError:
        return 0, 1


MOST_NAMED = 8  # limit for named ranks, and for findings in the tag


class RankComparison:
    def __init__(self, recording: Callable[[], Recording | None]) -> None:
        self._recording = recording
        self._noted: Recording | None = None
        self._begin()

    def _begin(self) -> None:
        self._said: list[str] = []  # parts of the tag
        self._broken_at = 0  # step of the last reported non-finite loss
        self._spike_at = 0  # step of the last reported spike
        self._slow_steps: dict[int, float] = {}  # longest reported step of each rank
        self._slowest: int | None = None
        self._slow = 0  # number of consecutive exchanges in which the rank was slow

    def take(self, table: RankTable, names: Sequence[str]) -> None:
        """Compare the measurements of all ranks; `names`: those of the ranks."""
        recording = self._recording()
        if recording is None or recording.closed:
            return
        if recording is not self._noted:
            self._noted = recording
            self._begin()
            self._note(recording, f"{len(names)} ranks: loss and time of each at least every {EVERY} steps")
            with_loss = [rank for rank, loss in enumerate(table.losses) if loss is not None]
            if with_loss and 0 not in with_loss:
                recording.note("loss", f"from the last pipeline stage: {_named(with_loss, names)}")
        for event in (
            self._nonfinite(table, names, recording),
            self._spike(table, names),
            self._slow_step(table, names),
            self._straggler(table, names, recording.step),
        ):
            if event is not None:
                recording.emit(event)
                if isinstance(event.facts, RankFacts):
                    self._note(recording, event.facts.heading(event.step))

    def _note(self, recording: Recording, text: str) -> None:
        self._said = [*self._said[:1], *self._said[1:][1 - MOST_NAMED :], text]
        recording.note("ranks", ". ".join(self._said)[:1000])

    def _nonfinite(self, table: RankTable, names: Sequence[str], recording: Recording) -> Finding | None:
        broken = [peak.broken for peak in table.peaks]
        steps = [step for step in broken if step > 0]
        if not steps:
            self._broken_at = 0 if self._broken_at < recording.step - EVERY else self._broken_at
            return None
        first, last = min(steps), self._broken_at
        self._broken_at = max(recording.step, max(steps))
        if last and first <= last + EVERY:  # the same episode
            return None
        where = [rank for rank, step in enumerate(broken) if step == first]
        facts = RankNonfiniteFacts(_names(where, names), len(where), len(names), where[0])
        return Finding.at(facts, first, Severity.WARNING, remedies=RankNonfinite.remedies)

    def _spike(self, table: RankTable, names: Sequence[str]) -> Finding | None:
        steps = [peak.spike for peak in table.peaks if peak.spike > self._spike_at]
        if not steps:
            return None
        first = min(steps)
        where = [rank for rank, peak in enumerate(table.peaks) if peak.spike == first]
        worst = max(where, key=lambda rank: table.peaks[rank].spike_z)
        peak, limit = table.peaks[worst], z_of_all(len(names))
        counts = peak.spike_z >= limit
        if not counts and table.peaks[0].spike <= self._spike_at:
            return None  # one of many ranks, in which a loss this high is usual
        last, self._spike_at = self._spike_at, max(steps)
        if last and first <= last + EVERY:  # the same episode
            return None
        facts = RankSpikeFacts(
            _names(where, names),
            len(where),
            len(names),
            worst,
            names[worst],
            peak.spike_loss,
            peak.spike_level,
            peak.spike_z,
            limit,
        )
        severity = Severity.WARNING if counts and not facts.is_everywhere else Severity.INFO
        return Finding.at(facts, first, severity, remedies=RankSpike.remedies)

    def _slow_step(self, table: RankTable, names: Sequence[str]) -> Finding | None:
        slowest = max(range(len(names)), key=lambda rank: table.peaks[rank].slow_seconds)
        peak = table.peaks[slowest]
        if (
            peak.slow_seconds < RankSlowStep.times * peak.slow_usual
            or peak.slow_seconds - peak.slow_usual < RankSlowStep.seconds
        ):
            return None
        together = [
            other for other in table.peaks if other.slow == peak.slow and other.slow_seconds > peak.slow_seconds / 2
        ]
        if 2 * len(together) > len(names) or peak.slow_seconds < 2 * self._slow_steps.get(slowest, 0.0):
            return None
        self._slow_steps[slowest] = peak.slow_seconds
        facts = RankSlowStepFacts(names[slowest], slowest, peak.slow_seconds, peak.slow_usual, RankSlowStep.times)
        return Finding.at(facts, peak.slow, Severity.INFO, remedies=RankSlowStep.remedies)

    def _straggler(self, table: RankTable, names: Sequence[str], step: int) -> Finding | None:
        slowest = max(range(len(names)), key=table.seconds.__getitem__)
        seconds = table.seconds[slowest]
        usual = median(other for rank, other in enumerate(table.seconds) if rank != slowest)
        if seconds < Straggler.times * usual or seconds - usual < Straggler.seconds:
            self._slowest, self._slow = None, 0
            return None
        self._slow = self._slow + 1 if slowest == self._slowest else 1
        self._slowest = slowest
        if self._slow != Straggler.in_a_row:
            return None
        facts = StragglerFacts(names[slowest], slowest, seconds, usual, Straggler.times, Straggler.in_a_row)
        return Finding.at(facts, step, Severity.INFO, remedies=Straggler.remedies)


def _names(where: Sequence[int], names: Sequence[str]) -> tuple[str, ...]:
    return tuple(names[rank] for rank in where[:MOST_NAMED])


def _named(where: Sequence[int], names: Sequence[str]) -> str:
    return ", ".join(_names(where, names))
