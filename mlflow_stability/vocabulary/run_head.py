"""What a tracking store says of a run without its metrics' histories: enough to know whether it is known already."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RunHead:
    """One run of a tracking store."""

    run_id: str
    name: str = ""
    finished: bool = False
    """Whether nothing more is expected of it."""
    state: str = ""
    """A digest of its store, how and when it ended, its parameters and tags, and the last point of every metric."""
