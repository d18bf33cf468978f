"""Lays out the losses of several runs over each other, aligned at the onset of their trouble.

In: cards. Out: a path for each in a plane whose zero is the onset, and the ticks. Runs without trouble are aligned
where the others' usually began, so that one sees what they did there; where none had any, all begin at their first
step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.reports.html_kit.axis import Axis, Tick, axis_of
from mlflow_stability.vocabulary.result import RunCard

WIDTH, HEIGHT = 1000, 300
MOST = 24
"""Curves in one picture: the sickest half and the stablest half of the runs."""
HEADROOM = 2.0
"""How much of a logarithmic scale may lie above all sound losses, in heights of what those span."""
LEAST_HEADROOM = 100.0
"""At least up to so many times the highest sound loss is shown."""


_Curve = tuple[NDArray[np.float64], NDArray[np.float64]]


@dataclass(frozen=True, slots=True)
class Line:
    """One run in the picture."""

    name: str
    kind: str
    """The run's state, ``lost`` or ``stable``; of two runs ``one`` and ``other``."""
    path: str


@dataclass(frozen=True, slots=True)
class Overlay:
    """The picture."""

    lines: tuple[Line, ...]
    zero: float | None
    """Percent from the left where the onset is; None where nothing was aligned."""
    steps: tuple[Tick, ...]
    values: tuple[Tick, ...]
    left_out: int = 0
    logarithmic: bool = False
    borrowed: bool = False
    """Whether runs without trouble are aligned by the onsets of others."""
    cut: bool = False
    """Whether some losses are higher than the picture shows."""


def overlay_of(cards: Sequence[RunCard]) -> Overlay | None:
    """The picture of these runs, which come in order of stability; None for fewer than two curves."""
    drawable = [card for card in cards if card.sketch is not None and np.isfinite(card.sketch.low).any()]
    if len(drawable) < 2:
        return None
    shown = drawable if len(drawable) <= MOST else [*drawable[: MOST // 2], *drawable[-(MOST // 2) :]]
    onsets = [card.onset for card in shown if card.onset is not None]
    usual = float(np.median(onsets)) if onsets else None
    curves = [_shifted(card, usual) for card in shown]
    across = Axis(
        min(float(steps.min()) for steps, _ in curves), max(float(steps.max()) for steps, _ in curves)
    )  # all of every run
    upward, cut = _upward(shown, curves)
    two = len(shown) == 2
    kinds = ["one", "other"] if two else [card.state for card in shown]
    lines = [
        Line(card.name or card.source, kind, path_of(steps, values, across, upward))
        for card, kind, (steps, values) in zip(shown, kinds, curves, strict=True)
    ]
    zero = across.place(0.0) if usual is not None else None
    ticks = across.ticks()
    heights = tuple(Tick(100 - each.at, each.label) for each in upward.ticks())
    borrowed = 0 < len(onsets) < len(shown)
    return Overlay(tuple(lines), zero, ticks, heights, len(drawable) - len(shown), upward.logarithmic, borrowed, cut)


def path_of(steps: NDArray[np.float64], values: NDArray[np.float64], across: Axis, upward: Axis) -> str:
    """An SVG path that is lifted where a value is not finite, and lies on the edge where it is beyond the picture."""
    inside = np.isfinite(values) & (steps >= across.low) & (steps <= across.high)
    x, y = across.places(steps) * WIDTH / 100, (100 - upward.places(values)) * HEIGHT / 100
    parts, drawing = [], False
    for there, left, down in zip(inside.tolist(), x.tolist(), y.tolist(), strict=True):
        if there:
            parts.append(f"{'L' if drawing else 'M'}{left:.1f} {down:.1f}")
        drawing = there
    return "".join(parts)


def _shifted(card: RunCard, usual: float | None) -> _Curve:
    """Steps from the onset, and values: the lowest and the highest of each stretch in turn."""
    assert card.sketch is not None
    begin = usual if card.onset is None else float(card.onset)
    steps = np.repeat(np.asarray(card.sketch.steps, np.float64), 2) - (begin if begin is not None else 0.0)
    values = np.stack([np.asarray(card.sketch.low), np.asarray(card.sketch.high)], axis=1).reshape(-1)
    return steps, values


def _upward(cards: Sequence[RunCard], curves: Sequence[_Curve]) -> tuple[Axis, bool]:
    """The scale, and whether it ends below the highest loss: one that explodes leaves the others some room."""
    everything = np.concatenate([values for _, values in curves])
    axis = axis_of(_without_far_ends(everything))
    if not axis.logarithmic:
        return axis, False
    sound = np.concatenate([_sound(card, *curve) for card, curve in zip(cards, curves, strict=True)])
    sound = sound[np.isfinite(sound) & (sound > 0)]  # a zero that is far from all others has no place on this scale
    if not len(sound):
        return axis, False
    low, high = float(sound.min()), float(sound.max())
    with np.errstate(over="ignore"):
        top = float(np.float64(high) * max(LEAST_HEADROOM, np.float64(high / low) ** HEADROOM))
    return (Axis(axis.low, top, logarithmic=True), True) if axis.high > top else (axis, False)


def _sound(card: RunCard, steps: NDArray[np.float64], values: NDArray[np.float64]) -> NDArray[np.float64]:
    """What it was before its trouble; the stretch in which that began is left out."""
    if card.onset is None:
        return values
    before = values[steps <= 0]
    return before[:-2] if len(before) > 2 else before[:1]


def _without_far_ends(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The values that the picture is made to show: without the last hundredth where it is far from all others."""
    known = values[np.isfinite(values)]
    if not len(known) or known.min() > 0:
        return known  # a logarithmic scale has room for all
    low, high = np.percentile(known, [1, 99])
    far = float(np.ptp(known)) > 5 * float(high - low) > 0
    return known[(known >= low) & (known <= high)] if far else known
