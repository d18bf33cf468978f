"""What happened on the way, as it is marked beside curves.

In: events one after the other. Out: marks: a kind, how bad, from which step to which, how often. Guarantees: at most
`MOST_PER_KIND` marks of a kind are kept, neighbours being put together, and none is forgotten.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from mlflow_stability.kinds.reported.rollback import RollbackFacts
from mlflow_stability.vocabulary.result import Finding, Severity

MOST_PER_KIND = 500
ROLLBACK = "rollback"
STEP_SKIPPED = "step_skipped"


@dataclass(frozen=True, slots=True)
class Mark:
    """A stretch in which something happened."""

    kind: str
    severity: Severity
    start: int
    end: int
    count: int = 1
    """How many times."""
    target: int | None = None
    """Of a rollback: the step whose state the training was rolled back to."""


class MarkSketch:
    """The marks of one run as far as it has come."""

    def __init__(self) -> None:
        self._marks: dict[str, list[Mark]] = {}
        self._gap: dict[str, int] = {}

    def hear(self, event: Finding, step: int) -> None:
        """Take an event in, at the step that the run counts it at."""
        target = event.facts.target if isinstance(event.facts, RollbackFacts) else None
        moved = None if target is None else target + step - event.step
        self.add(Mark(event.kind, event.severity, step, step, target=moved))

    def add(self, mark: Mark) -> None:
        """Take a mark in."""
        marks, gap = self._marks.setdefault(mark.kind, []), self._gap.get(mark.kind, 0)
        if marks and mark.target is None and 0 <= mark.start - marks[-1].end <= gap:
            marks[-1] = together(marks[-1], mark)
        else:
            marks.append(mark)
        if len(marks) > MOST_PER_KIND:
            self._gap[mark.kind], self._marks[mark.kind] = _thinned(marks)

    def marks(self) -> tuple[Mark, ...]:
        """What is known so far."""
        return tuple(each for marks in self._marks.values() for each in marks)


def together(first: Mark, second: Mark) -> Mark:
    """Two neighbours as one."""
    return replace(
        first,
        severity=max(first.severity, second.severity),
        end=max(first.end, second.end),
        count=first.count + second.count,
    )


def grouped(marks: list[Mark], gap: int) -> list[Mark]:
    """The marks of one kind, those no more than `gap` steps apart put together."""
    found: list[Mark] = []
    for mark in sorted(marks, key=lambda one: one.start):
        if found and mark.start - found[-1].end <= gap:
            found[-1] = together(found[-1], mark)
        else:
            found.append(mark)
    return found


def _thinned(marks: list[Mark]) -> tuple[int, list[Mark]]:
    """Half as many, and the distance below which neighbours are put together from now on."""
    gap = max(1, max(each.end for each in marks) - min(each.start for each in marks)) // MOST_PER_KIND
    found = grouped(marks, max(1, gap))
    while len(found) > MOST_PER_KIND // 2:
        gap = max(1, gap * 2)
        found = grouped(marks, gap)
    return gap, found
