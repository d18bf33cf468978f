"""Holds back the points of what has a single value: it is no curve, and its chart tells nothing.

In: points, as they were chosen. Out: those of signals that have had two values, the earlier ones with them. The charts
that matter most are there from their second point on, whatever its value. Guarantees: the same points give the same
ones, also when the work is cut and taken up again from `saved()`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple
from typing import Any

from mlflow_stability.tracking.write.thinning import Point
from mlflow_stability.vocabulary.measured import Signal
from mlflow_stability.vocabulary.text import MAIN


class SingleValues:
    """What one recording has measured and what has not changed so far."""

    def __init__(self, saved: Mapping[str, Any] | None = None) -> None:
        """`saved`: the state of a thinner, with that of this class in it where it was saved before."""
        said = saved or {}
        self._held = {_point(first).signal: (_point(first), _point(last)) for first, last in said.get("held", ())}
        """First and last point of what has had one value."""
        # Before there was this rule everything that was chosen was sent.
        self._curves = {Signal(quantity, place) for quantity, place, *_ in said.get("curves", said.get("kept", ()))}

    def of_curves(self, points: Sequence[Point]) -> list[Point]:
        """The points that can be sent."""
        found: list[Point] = []
        for point in points:
            if point.signal not in self._curves:
                found += self._released(point)
            else:
                found.append(point)
        return found

    def saved(self) -> dict[str, Any]:
        """Everything that is needed to go on from here, as plain JSON."""
        return {
            "held": [[_text(first), _text(last)] for first, last in self._held.values()],
            "curves": [[signal.quantity, signal.place] for signal in self._curves],
        }

    def _released(self, point: Point) -> list[Point]:
        signal = point.signal
        held = self._held.pop(signal, None)
        if held is None or (signal.quantity not in MAIN and _same(held[0].value, point.value)):
            self._held[signal] = (point if held is None else held[0], point)
            return []
        first, last = held
        self._curves.add(signal)
        return [first, point] if last.step == first.step else [first, last, point]


def _same(one: float, other: float) -> bool:
    return one == other or (math.isnan(one) and math.isnan(other))


def _text(point: Point) -> list[Any]:
    # JSON has no words for what is not finite.
    return [*astuple(point.signal), point.step, repr(point.value), point.time]


def _point(text: Sequence[Any]) -> Point:
    quantity, place, step, value, when = text
    return Point(Signal(quantity, place), step, float(value), when)
