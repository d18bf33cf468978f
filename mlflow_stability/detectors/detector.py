"""What a judgement looks like from outside.

A detector is a frozen dataclass whose fields are its thresholds. It is pure: what it says depends on the state it is
handed and the point it is shown, and on nothing else, so that what was judged live can be judged again afterwards.
Only `panel` calls it; detectors do not know each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from mlflow_stability.vocabulary.event import Event


@dataclass(frozen=True, slots=True)
class Point:
    """One value, as detectors see it."""

    quantity: str
    place: str
    step: int
    value: float
    attempt: int
    time: float


class Detector(Protocol):
    """One judgement. Its class documents it: what it sees, why it matters, what to try, when it is wrong."""

    kind: ClassVar[str]
    """The name of what it finds: ``nan_detected``."""
    quantities: ClassVar[tuple[str, ...]]
    """The quantities it wants to see; those of one place share one state."""

    def begin(self) -> Any:
        """Start afresh, knowing nothing."""
        ...

    def step(self, state: Any, point: Point) -> tuple[Any, Event | None]:
        """Look at the next point; give the new state and, when something was found, what."""
        ...
