"""A run as a search of a store shows it, before anything of it is read."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FoundRun:
    """One run of a store."""

    run_id: str
    name: str = ""
    experiment: str = ""
    status: str = ""
    """MLflow's word for how it stands: ``RUNNING``, ``FINISHED``."""
    started: float = 0.0
    """Seconds since the epoch; 0 where the store does not say."""
