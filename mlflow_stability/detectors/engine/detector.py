"""What a judgement looks like from outside.

A detector is a frozen dataclass whose fields are its thresholds. It is pure: what it says depends on the state it is
handed and the point it is shown, and on nothing else, so that what was judged live can be judged again afterwards.
The state belongs to the panel; a detector may change it in place and keeps nothing of it.
Only `panel` calls it; detectors do not know each other.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple, Protocol

from mlflow_stability.vocabulary.result.event import Event, Severity


class Point(NamedTuple):
    """One value, as detectors see it: with what the signal's own baseline says of it."""

    quantity: str
    place: str
    step: int
    value: float
    attempt: int = 0
    time: float = 0.0
    finite: bool = True
    """Whether the value is neither NaN nor infinite."""
    before: float | None = None
    """The last finite value of the same signal before this one."""
    z: float = 0.0
    """How far the value lies above its baseline, in widths of the signal's own noise; 0 where there is none yet."""
    accepted: bool = True
    """Whether the value went into the baseline; what stands out and what is not finite stays outside."""
    center: float = 0.0
    """The level that `z` is counted from, in the units of the value; 0 where there is none yet."""
    scale: float = 0.0
    """The width of the noise: as a share of the level where `logarithmic`, else in the units of the value."""
    tail: float = 0.0
    """The z that this signal's own noise is expected to reach once in 100,000 values."""
    logarithmic: bool = True
    """Whether z compares ratios; differences are compared while the baseline holds values at or below zero."""
    players: bool = False
    """Whether trainings take turns in this recording, as the halves of a GAN do: a loss's level says nothing then."""


class Detector(Protocol):
    """One judgement. Its class documents it: what it sees, why it matters, what to try, when it is wrong."""

    kind: ClassVar[str]
    """The name of what it finds: ``nan_detected``."""
    rule: ClassVar[str]
    """Which way of finding it: empty for our own, ``classic`` for the one that is in general use."""
    quantities: ClassVar[tuple[str, ...]]
    """The quantities it wants to see; those of one place share one state."""
    compared: ClassVar[tuple[str, ...]]
    """Those of them that it wants to see against their baseline."""
    across_places: ClassVar[bool]
    """Whether all places share one state."""
    places: ClassVar[str]
    """Of what is measured by layer: ``whole``, only the whole model's values; ``layers``, only those of its layers;
    ``all``, which holds where a detector says nothing."""
    severities: ClassVar[tuple[Severity, ...]]
    """How bad its findings can be, the mildest first."""
    experimental: ClassVar[bool]
    """Whether it is not relied upon yet; such findings are never above INFO, and change no verdict."""
    remedies: ClassVar[tuple[str, ...]]
    """What to try, most likely first."""

    def begin(self) -> Any:
        """Start afresh, knowing nothing."""
        ...

    def step(self, state: Any, point: Point) -> tuple[Any, Event | None]:
        """Look at the next point; give the new state and, when something was found, what."""
        ...
