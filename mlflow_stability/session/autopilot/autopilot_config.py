"""The autopilot's configuration, made from the settings, and what it needs from its session.

Guarantees: contradictory settings are refused when `autolog` is called, not at a step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from mlflow_stability.recovery.checkpoints.checkpoint_store import CheckpointRanks
from mlflow_stability.recovery.stop_conditions import StopCondition, stop_conditions
from mlflow_stability.session.autopilot.ranks import Ranks
from mlflow_stability.session.autopilot.states import OpenDirectory
from mlflow_stability.session.broken_batches import BatchReport
from mlflow_stability.session.guard import PartGuard
from mlflow_stability.vocabulary.rollback_policy import RollbackPolicy
from mlflow_stability.vocabulary.settings import Settings


@dataclass(frozen=True, slots=True)
class AutopilotConfig:
    policy: RollbackPolicy
    guard: bool | Literal["late"] = True
    """Whether broken steps are skipped, or with "late" answered after they were taken."""
    stop_on: tuple[StopCondition, ...] = ()
    adaptive_clip: bool = False
    capture_batch: bool = True
    memory_budget: int | None = None
    """How many bytes of a device a snapshot may take for a moment."""

    @property
    def keeps(self) -> bool:
        """Whether states are kept: to go back to them, or to have the last good one where the training is stopped."""
        return self.policy.rolls_back or bool(self.stop_on) or self.policy.best_by is not None


def autopilot_config_of(settings: Settings) -> AutopilotConfig:
    return AutopilotConfig(
        settings.policy,
        settings.guards,
        stop_conditions(settings.stop_on),
        settings.adaptive_clip,
        bool(settings.capture_batch) and settings.guards is True,
        settings.memory_budget,
    )


@dataclass(frozen=True, slots=True)
class AutopilotContext:
    """Handed to each autopilot when its recording begins."""

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
