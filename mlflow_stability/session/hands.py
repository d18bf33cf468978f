"""What the autopilot needs from its session."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mlflow_stability.session.batch_report import BatchReport
from mlflow_stability.session.guard import PartGuard
from mlflow_stability.session.keeping import OpenShelf
from mlflow_stability.session.shared_vote import SharedVote


@dataclass(frozen=True, slots=True)
class Hands:
    """Handed to each pilot when its recording begins."""

    guard: PartGuard
    settle: Callable[[], None]
    """Waits for the readings that are on their way."""
    open_shelf: OpenShelf
    batches: BatchReport | None
    vote: SharedVote | None
