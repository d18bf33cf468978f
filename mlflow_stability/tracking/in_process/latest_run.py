"""The run that this process has recorded last, for who names no run.

The session announces it; who reads runs back asks here, and so need not know the session, which loads torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from mlflow_stability.errors import TrackingError

WAIT = 60.0
"""For how many seconds a diagnosis waits for what is still on its way to the run."""


@dataclass(frozen=True, slots=True)
class DeliveredState:
    """A run, and whether all that was recorded of it has arrived."""

    run_id: str
    tracking_uri: str
    missing: str = ""
    """What has not arrived yet, in words; empty if everything has."""


class Recorded(Protocol):
    """What a session announces."""

    def delivered(self, seconds: float) -> DeliveredState | None:
        """Wait until what was recorded so far is in the run; None where the run is not known by then."""


_latest: Recorded | None = None


def announce(recorded: Recorded | None) -> None:
    """From now on, this is recorded."""
    global _latest
    _latest = recorded


def latest() -> Recorded | None:
    """What was announced last."""
    return _latest


def latest_run(seconds: float = WAIT) -> DeliveredState | None:
    """The run that was recorded last, once everything is in it; None where this process has recorded none.

    Raises ``TrackingError`` where it is not in MLflow yet.
    """
    if _latest is None:
        return None
    state = _latest.delivered(seconds)
    if state is None:
        raise TrackingError(
            f"The run recorded last is not in MLflow yet: the courier process has not made it within {seconds:.0f} s. "
            "Try again later; `mlflow-stability doctor` checks the tracking store."
        )
    return state
