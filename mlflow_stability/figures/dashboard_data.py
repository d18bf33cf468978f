"""The data of a dashboard: curves, marks of events and named ranges; nothing here draws."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from mlflow_stability.figures.curve import Curve
from mlflow_stability.kinds.reported.rollback import RollbackFacts
from mlflow_stability.vocabulary.result import Finding, Severity

QUANTITIES = (
    "loss",
    "val_loss",
    "grad_norm",
    "grad_norm_clipped",
    "learning_rate",
    "learning_rate_used",
    "update_ratio",
    "skipped_steps",
)
MAX_CURVES = 5  # curves of one quantity that are shown; an optimizer may have a group for each layer
MAX_MARKS = 500  # marks of one kind that are kept; neighbours are merged beyond
ROLLBACK = "rollback"
STEP_SKIPPED = "step_skipped"


@dataclass(frozen=True, slots=True)
class Mark:
    """A range of steps with events of one kind."""

    kind: str
    severity: Severity
    start: int
    end: int
    count: int = 1
    target: int | None = None  # the step whose state a rollback restored


@dataclass(frozen=True, slots=True, eq=False)
class DashboardData:
    title: str
    subtitle: str
    curves: tuple[Curve, ...]  # curves of the quantities in `QUANTITIES` that were measured
    marks: tuple[Mark, ...] = ()
    left_out: Mapping[str, int] = field(default_factory=dict)  # by quantity, the number of curves beside these

    def of(self, quantity: str) -> list[Curve]:
        """Return the curves of a quantity that have a point, that of the whole model first."""
        curves = [curve for curve in self.curves if curve.signal.quantity == quantity and len(curve)]
        return sorted(curves, key=lambda curve: curve.signal.place != "")


class MarkSketch:
    """The marks of a run while it is recorded; at most `MAX_MARKS` of a kind are kept, and none is lost."""

    def __init__(self) -> None:
        self._marks: dict[str, list[Mark]] = {}
        self._gap: dict[str, int] = {}

    def add_event(self, event: Finding, step: int) -> None:
        target = event.facts.target if isinstance(event.facts, RollbackFacts) else None
        moved = None if target is None else target + step - event.step
        self.add(Mark(event.kind, event.severity, step, step, target=moved))

    def add(self, mark: Mark) -> None:
        """Add a mark, or merge it with the last one of its kind."""
        marks, gap = self._marks.setdefault(mark.kind, []), self._gap.get(mark.kind, 0)
        if marks and mark.target is None and 0 <= mark.start - marks[-1].end <= gap:
            marks[-1] = _merged(marks[-1], mark)
        else:
            marks.append(mark)
        if len(marks) > MAX_MARKS:
            self._gap[mark.kind], self._marks[mark.kind] = _thinned(marks)

    def marks(self) -> tuple[Mark, ...]:
        return tuple(mark for marks in self._marks.values() for mark in marks)


def _merged(first: Mark, second: Mark) -> Mark:
    return replace(
        first,
        severity=max(first.severity, second.severity),
        end=max(first.end, second.end),
        count=first.count + second.count,
    )


def grouped(marks: list[Mark], gap: int) -> list[Mark]:
    """Return marks of one kind, with those no more than `gap` steps apart merged."""
    merged: list[Mark] = []
    for mark in sorted(marks, key=lambda mark: mark.start):
        if merged and mark.start - merged[-1].end <= gap:
            merged[-1] = _merged(merged[-1], mark)
        else:
            merged.append(mark)
    return merged


def _thinned(marks: list[Mark]) -> tuple[int, list[Mark]]:
    """Half as many, and the distance below which neighbours are merged from now on."""
    gap = max(1, max(mark.end for mark in marks) - min(mark.start for mark in marks)) // MAX_MARKS
    merged = grouped(marks, max(1, gap))
    while len(merged) > MAX_MARKS // 2:
        gap = max(1, gap * 2)
        merged = grouped(marks, gap)
    return gap, merged


@dataclass(frozen=True, slots=True)
class Zone:
    """A named range of a quantity; a healthy model may have a gradient norm of 300, which detectors allow for."""

    name: str
    low: float
    high: float
    tint: str
    limits: str  # as text: ``0.1 to 10``


_HEALTHY, _DANGER, _LOW = "#e3f2ec", "#fbe4d8", "#ece6f3"
GRADIENT_NORM = (
    Zone("danger", 100.0, math.inf, _DANGER, "> 100"),
    Zone("healthy", 0.1, 10.0, _HEALTHY, "0.1 to 10"),
    Zone("vanishing", 0.0, 1e-5, _LOW, "< 1e-5"),
)
UPDATE_RATIO = (
    Zone("high", 0.1, math.inf, _DANGER, "> 0.1"),
    Zone("good", 1e-4, 1e-2, _HEALTHY, "1e-4 to 1e-2"),
    Zone("low", 0.0, 1e-7, _LOW, "< 1e-7"),
)


def zone_of(value: float, zones: tuple[Zone, ...]) -> Zone | None:
    """Return the zone of a value, or None between zones."""
    return next((zone for zone in zones if zone.low <= value <= zone.high), None)
