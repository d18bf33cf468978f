"""What an autopilot needs of its session."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mlflow_stability.recovery.checkpoints.checkpoint_store import CheckpointRanks
from mlflow_stability.recovery.stop_conditions import StopCondition
from mlflow_stability.session.autopilot.ranks import Ranks
from mlflow_stability.session.autopilot.states import OpenDirectory
from mlflow_stability.session.broken_batches import BatchReport
from mlflow_stability.session.guard import PartGuard
from mlflow_stability.vocabulary.settings import Settings


@dataclass(frozen=True, slots=True)
class AutopilotContext:
    """Handed to each autopilot when its recording begins."""

    settings: Settings
    stop_on: tuple[StopCondition, ...]
    guard: PartGuard
    settle: Callable[[], None]
    """Waits for the readings that are on their way."""
    open_directory: OpenDirectory
    batches: BatchReport | None
    ranks: Ranks
    """The processes that act together."""
    warn: Callable[[str], None]
    """Writes a line about what may follow."""
    checkpoint_ranks: CheckpointRanks | None = None
    """The processes that write checkpoints together; None where there is but one."""
