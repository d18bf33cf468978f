"""How a training ended: the rank that ended first, the closing, and the status of the run."""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from mlflow_stability.courier.sinks.event_sink import RunSummary
from mlflow_stability.journal.layout import RankProcess, read_ranks
from mlflow_stability.journal.process_identity import ProcessStatus, process_status
from mlflow_stability.kinds.reported.ranks import RankDied, RankDiedFacts
from mlflow_stability.vocabulary.result import Finding, Severity
from mlflow_stability.vocabulary.run import RUN_STATUS, Closing


@dataclass(frozen=True, slots=True)
class RankEnd:
    """A process that ended before rank 0."""

    name: str
    """Its rank and host."""
    time: float
    before: float
    """Seconds before the end of rank 0; 0 while that lives."""


class RankProcesses:
    """The processes of the ranks of one session.

    A thread waits for their ends, so that the order is right even where a launcher ends the others a moment later. Only
    processes of this machine are watched, on Linux.
    """

    def __init__(self, session: Path) -> None:
        self._session = session
        self._ended: dict[int, float] = {}  # end time by index; index 0 records
        self._ranks: list[RankProcess] = []
        self._lock = threading.Lock()

    def look(self) -> None:
        """Start waiting once the training has named them."""
        if self._ranks:
            return
        self._ranks = read_ranks(self._session)
        descriptors = {}
        for index, rank in enumerate(self._ranks):
            with contextlib.suppress(OSError, AttributeError):  # gone already, or a system without them
                descriptors[os.pidfd_open(rank.identity.pid)] = index
                if (
                    process_status(rank.identity) is not ProcessStatus.LIVES
                ):  # another process has its pid by now, or here
                    os.close(descriptors.popitem()[0])
        if descriptors:
            threading.Thread(target=self._wait, args=(descriptors,), name="ranks", daemon=True).start()

    def first_end(self) -> list[RankEnd]:
        """Return those that ended first, where rank 0 did not; several if their order is unknown."""
        with self._lock:
            ended = dict(self._ended)
        if not ended or min(ended.values()) >= ended.get(0, float("inf")):
            return []
        first = min(ended.values())
        lead_seconds = ended[0] - first if 0 in ended else 0.0
        return [
            RankEnd(self._ranks[at].name, first, lead_seconds) for at, when in sorted(ended.items()) if when == first
        ]

    def _wait(self, descriptors: dict[int, int]) -> None:
        poller = select.poll()
        for descriptor in descriptors:
            poller.register(descriptor, select.POLLIN)
        while descriptors:
            gone = [descriptor for descriptor, _ in poller.poll()]
            now = time.time()
            for descriptor in gone:
                poller.unregister(descriptor)
                with self._lock:
                    self._ended[descriptors.pop(descriptor)] = now
                os.close(descriptor)


_ENDED = frozenset({"FINISHED", "FAILED", "KILLED"})


def silent_end(out_of_memory: bool, step: int, time: float, journal_deleted: bool = False) -> Closing:
    """Return the closing of a process that wrote none, or whose journal was deleted."""
    if out_of_memory:
        return Closing("out_of_memory", "killed by the system: out of memory", step, time)
    if journal_deleted:
        return Closing("unknown", f"the journal was deleted after step {step}; later steps are lost", step, time)
    return Closing("killed", "process ended without notice: killed by a signal, or os._exit()", step, time)


def rank_died(closing: Closing, story: RunSummary, ended: Sequence[RankEnd], *, restarts: bool) -> Finding | None:
    """Return a finding about another rank that ended first, where the training did not end well.

    `restarts`: a launcher restarts the job, so that it is no warning.
    """
    if not ended or closing.outcome in ("finished", "stopped"):
        return None
    when = datetime.fromtimestamp(ended[0].time, timezone.utc).strftime("%H:%M:%S UTC")
    facts = RankDiedFacts(tuple(rank.name for rank in ended), len(ended), when, ended[0].before)
    severity = Severity.INFO if restarts else Severity.WARNING
    return Finding.at(facts, story.last_step, severity, remedies=RankDied.remedies, time=ended[0].time)


def waits_for_process(closing: Closing, own_run: bool) -> bool:
    """Whether the status is certain only after the process: MLflow's own exit may still set one."""
    return not own_run and closing.run_was_active


def status_to_set(closing: Closing, said_goodbye: bool, own_run: bool, status: str, others_live: bool) -> str | None:
    """Return the right status; None where the run has it, or it is not ours to set."""
    true = RUN_STATUS.get(closing.outcome, "FAILED")
    if others_live or status == true:
        return None
    if own_run:
        return true
    if not closing.run_was_active:
        return None  # already ended by its owner
    if status in _ENDED and (closing.outcome == "finished" or not said_goodbye):
        return None  # its owner knew more than we do
    return true
