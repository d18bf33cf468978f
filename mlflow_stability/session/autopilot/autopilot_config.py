"""The autopilot's configuration, made from the settings, and what it needs from its session.

In: settings. Out: the policy, the stop conditions and options. Guarantees: contradictory settings are refused when
`autolog` is called, not at a step.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mlflow_stability.errors import SettingsError
from mlflow_stability.recovery.checkpoints.rank_store import CheckpointRanks
from mlflow_stability.recovery.rollback_policy import RollbackPolicy
from mlflow_stability.recovery.stop_conditions import StopCondition, stop_conditions
from mlflow_stability.session.autopilot.ranks import Ranks
from mlflow_stability.session.autopilot.states import OpenDirectory
from mlflow_stability.session.broken_batches import BatchReport
from mlflow_stability.session.guard import PartGuard
from mlflow_stability.vocabulary.argument import shown
from mlflow_stability.vocabulary.presets import IN_POLICY
from mlflow_stability.vocabulary.settings import Settings


@dataclass(frozen=True, slots=True)
class AutopilotConfig:
    """What the autopilot is to do."""

    policy: RollbackPolicy
    stop_on: tuple[StopCondition, ...] = ()
    adaptive_clip: bool = False
    capture_batch: bool = True
    extra_state: Mapping[str, Any] = field(default_factory=dict)
    """Objects of the script whose state goes into each checkpoint."""
    memory_budget: int | None = None
    """How many bytes of a device a snapshot may take for a moment."""

    @property
    def keeps(self) -> bool:
        """Whether states are kept: to go back to them, or to have the last good one where the training is stopped."""
        return self.policy.rollback or bool(self.stop_on) or self.policy.best_by is not None


def autopilot_config_of(settings: Settings) -> AutopilotConfig:
    """The plan of these settings."""
    policy = _policy(settings)
    return AutopilotConfig(
        policy,
        stop_conditions(settings.stop_on),
        settings.adaptive_clip,
        bool(settings.capture_batch) and policy.guard is True,
        settings.extra_state,
        settings.memory_budget,
    )


def _policy(settings: Settings) -> RollbackPolicy:
    asked: Any = settings.rollback
    if isinstance(asked, RollbackPolicy):
        policy = dataclasses.replace(asked, **_knobs(settings, all_of_them=False))
        own: Any = settings.guard
        return policy if own is None else dataclasses.replace(policy, guard=own)
    if not isinstance(asked, bool):
        raise SettingsError(f"rollback must be True, False or a RollbackPolicy; got {shown(asked)}.")
    guard: Any = asked if settings.guard is None else settings.guard
    if settings.preset is not None:
        knobs = _knobs(settings, all_of_them=True)
        return RollbackPolicy.preset(settings.preset, **knobs, rollback=asked, guard=guard)
    return RollbackPolicy(**_knobs(settings, all_of_them=False), rollback=asked, guard=guard)


def _knobs(settings: Settings, *, all_of_them: bool) -> dict[str, Any]:
    """The settings that are options of the policy, too; without a preset, one that was left as it is says nothing."""
    return {
        name: value
        for setting, name in IN_POLICY.items()
        if (value := getattr(settings, setting)) != _DEFAULTS[setting] or all_of_them
    }


_DEFAULTS = {each.name: each.default for each in dataclasses.fields(Settings)}


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
