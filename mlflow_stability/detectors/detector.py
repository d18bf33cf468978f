"""What a judgement looks like from outside.

A detector is a frozen dataclass whose fields are its thresholds. It is pure: what it says depends on the state it is
handed and the point it is shown, and on nothing else, so that what was judged live can be judged again afterwards.
The state belongs to the panel; a detector may change it in place and keeps nothing of it.
Only `panel` calls it; detectors do not know each other.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from mlflow_stability.detectors.finding_type import FindingType
from mlflow_stability.vocabulary.loss_level import NoLevel
from mlflow_stability.vocabulary.result.finding import Finding

ALL, WHOLE, LAYERS = "all", "whole", "layers"
"""Which places a detector can ask for."""


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
    has_level: bool = True
    """Whether the level of the losses measures progress; it does not in a GAN or in reinforcement learning."""
    reason: NoLevel | None = None
    """Why it does not; None where it does."""


@dataclass(frozen=True, slots=True)
class Detector(FindingType, ABC):
    """One judgement. Its class documents it: what it sees, why it matters, what to try, when it is wrong.

    A detector is a frozen dataclass: annotated fields are thresholds, what is not annotated says how it looks. It says
    only where it differs from what is set here.
    """

    quantities: ClassVar[tuple[str, ...]]
    """The quantities it wants to see; those of one place share one state."""
    compared: ClassVar[tuple[str, ...]] = ()
    """Those of them that it wants to see against their baseline."""
    across_places: ClassVar[bool] = False
    """Whether all places share one state."""
    hears_losses: ClassVar[bool] = True
    """Whether it is shown each loss; else it looks only at those that the panel keeps for all (`Progress.losses`)."""
    places: ClassVar[str] = ALL
    """Of what is measured by layer: ``whole``, only the whole model's values; ``layers``, only those of its layers."""
    on_request: ClassVar[bool] = False
    """Whether it looks only when it is asked for by name."""
    state_type: ClassVar[type[Any]]
    """What it keeps from point to point, made without arguments; where it takes some, `begin` is overridden."""

    def begin(self) -> Any:
        """Start afresh, knowing nothing."""
        return self.state_type()

    def after_rollback(self, state: Any) -> Any:  # noqa: ARG002 - for those that keep some of it
        """Start afresh after a rollback, but for what weights have no part in, such as the learning rates so far."""
        return self.begin()

    @abstractmethod
    def step(self, state: Any, point: Point) -> tuple[Any, Finding | None]:
        """Look at the next point; give the new state and, when something was found, what."""
