"""What an outlet is, and what it is told about the training.

Outlets do not need the tracking server: alerts are most welcome while it is away.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from mlflow_stability.alerts.outlet_settings import OutletSettings
from mlflow_stability.vocabulary.result.event import Event


def _say_nothing(_: str) -> None:
    """Where no training is there to pass it on."""


@dataclass(frozen=True, slots=True)
class OutletPlan:
    """What a session's recordings are delivered to beside their runs."""

    settings: OutletSettings = field(default_factory=OutletSettings)
    say: Callable[[str], None] = _say_nothing
    """Has the training say something on its console, once."""


@dataclass(frozen=True, slots=True)
class TrainingState:
    """The training at this moment."""

    alive: bool
    killed_for_memory: Callable[[], bool]
    stalled: Event | None = None
    """Set while it hangs."""


class Outlet(Protocol):
    """One way out of the journal, beside the run."""

    done: bool
    """Nothing is left to send, or it was given up."""
    awaited: bool
    """The end of the training should wait for it a little."""

    def advance(self, state: TrainingState) -> bool:
        """Do a bite of work; True if there is more to do at once. Never waits for a network, never raises for one."""
