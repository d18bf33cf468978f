"""Lays out a strip for each run: how far it went, and when it had trouble.

In: cards. Out: bars in percent of the width. Of very many runs the stablest and the sickest are shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mlflow_stability.reports.html_kit.axis import Axis, Tick
from mlflow_stability.vocabulary.result import RunCard

STABLEST, SICKEST = 10, 30
NARROWEST = 0.5
"""Percent of the width that a bar takes at least."""


@dataclass(frozen=True, slots=True)
class Bar:
    """An episode in a strip."""

    left: float
    width: float
    severity: str
    said: str


@dataclass(frozen=True, slots=True)
class Strip:
    """One run."""

    name: str
    kind: str
    left: float
    width: float
    bars: tuple[Bar, ...]


@dataclass(frozen=True, slots=True)
class Strips:
    """All of them."""

    strips: tuple[Strip, ...]
    steps: tuple[Tick, ...]
    left_out: int = 0


def strips_of(cards: Sequence[RunCard]) -> Strips | None:
    """The strips of runs that come in order of stability; None where none has steps."""
    known = [card for card in cards if card.first_step is not None and card.last_step is not None]
    if not known:
        return None
    shown = known if len(known) <= STABLEST + SICKEST else [*known[:STABLEST], *known[-SICKEST:]]
    across = Axis(float(min(c.first_step or 0 for c in shown)), float(max(c.last_step or 0 for c in shown)))
    return Strips(tuple(_strip(card, across) for card in shown), across.ticks(), len(known) - len(shown))


def _strip(card: RunCard, across: Axis) -> Strip:
    left, right = across.places([float(card.first_step or 0), float(card.last_step or 0)]).tolist()
    marks = sorted(card.troubles, key=lambda each: each.severity)
    bars = []
    for mark in marks:
        begin, end = across.places([float(mark.start), float(max(mark.start, mark.end))]).tolist()
        width = max(NARROWEST, end - begin)
        where = f"step {mark.start:,}" if mark.end <= mark.start else f"steps {mark.start:,} to {mark.end:,}"
        bars.append(Bar(min(begin, 100 - width), width, mark.severity.name.lower(), f"{mark.kind}, {where}"))
    return Strip(card.name or card.source, card.state, left, max(NARROWEST, right - left), tuple(bars))
